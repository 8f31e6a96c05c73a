// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Writer for JSON that can be embedded in an HTML page.

use std::fmt::Write as _;

/// The JSON text so far.
#[derive(Default)]
pub(super) struct JsonWriter {
    out: String,
    /// True if a comma has to precede the next value.
    needs_comma: bool,
}

impl JsonWriter {
    fn separate(&mut self) {
        if self.needs_comma {
            self.out.push(',');
        }
        self.needs_comma = true;
    }

    /// Begins an array or object.
    pub(super) fn begin(&mut self, bracket: char) {
        self.separate();
        self.out.push(bracket);
        self.needs_comma = false;
    }

    /// Ends an array or object.
    pub(super) fn end(&mut self, bracket: char) {
        self.out.push(bracket);
        self.needs_comma = true;
    }

    /// Writes the key of a member of an object.
    pub(super) fn key(&mut self, name: &str) {
        self.string(name);
        self.out.push(':');
        self.needs_comma = false;
    }

    /// Writes a number.
    pub(super) fn number(&mut self, n: u64) {
        self.separate();
        let _ = write!(self.out, "{n}");
    }

    /// Writes a string. Characters that could end the script or begin a tag are escaped.
    pub(super) fn string(&mut self, text: &str) {
        self.separate();
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' | '\\' | '<' | '>' | '&' | '\u{2028}' | '\u{2029}' | '\0'..='\x1f' => {
                    let _ = write!(self.out, "\\u{:04x}", c as u32);
                }
                _ => self.out.push(c),
            }
        }
        self.out.push('"');
    }

    /// Returns the text.
    pub(super) fn text(&self) -> &str {
        &self.out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_does_not_end_the_script() {
        let mut json = JsonWriter::default();
        json.begin('{');
        json.key("a");
        json.begin('[');
        json.number(1);
        json.string("\"</script>\n");
        json.end(']');
        json.key("b");
        json.number(2);
        json.end('}');
        let expected = "{\"a\":[1,\"\\u0022\\u003c/script\\u003e\\u000a\"],\"b\":2}";
        assert_eq!(json.text(), expected);
    }
}
