// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Quotes words for a shell.

/// Returns a word that a shell reads as this text.
pub fn quote(word: &[u8]) -> Vec<u8> {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"_./:=,@%+-".contains(byte);
    if !word.is_empty() && word.iter().all(is_plain) {
        return word.to_vec();
    }
    let mut quoted = vec![b'\''];
    for &byte in word {
        match byte {
            b'\'' => quoted.extend_from_slice(br"'\''"),
            _ => quoted.push(byte),
        }
    }
    quoted.push(b'\'');
    quoted
}

/// Returns words as the line that a shell splits into them again.
pub fn join<W: AsRef<[u8]>>(words: impl IntoIterator<Item = W>) -> Vec<u8> {
    let quoted: Vec<Vec<u8>> = words.into_iter().map(|word| quote(word.as_ref())).collect();
    quoted.join(&b' ')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_keep_their_text() {
        let line = join(["a.b", "", "two words", "it's", "$HOME", "*"]);
        let line = String::from_utf8(line).unwrap();
        assert_eq!(line, r"a.b '' 'two words' 'it'\''s' '$HOME' '*'");
        let output = std::process::Command::new("sh")
            .args(["-c", &format!("printf '<%s>' {line}")])
            .output()
            .unwrap();
        assert_eq!(output.stdout, b"<a.b><><two words><it's><$HOME><*>");
    }
}
