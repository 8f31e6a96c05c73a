// SPDX-License-Identifier: GPL-2.0 OR MIT

//! How people write codes: numbers, names in any spelling, and names that are nearly right.

/// A number in decimal or hexadecimal.
pub(super) fn number(word: &str) -> Option<u32> {
    let digits = word.strip_prefix("0x").or(word.strip_prefix("0X"));
    digits.map_or_else(
        || word.parse().ok(),
        |hex| u32::from_str_radix(hex, 16).ok(),
    )
}

/// A name without what spellings differ in: `IBV_WC_RETRY_EXC_ERR`, `RETRY_EXC_ERR` and `RetryExcErr` are one.
pub(super) fn plain(word: &str) -> String {
    let upper = word.trim().to_ascii_uppercase();
    let prefixes = ["IBV_WC_", "IB_WC_", "IBV_EVENT_", "IB_EVENT_"];
    let bare = prefixes
        .iter()
        .find_map(|prefix| upper.strip_prefix(prefix));
    let letters = bare.unwrap_or(&upper).chars();
    letters.filter(char::is_ascii_alphanumeric).collect()
}

/// How many letters have to change, come or go for one word to become the other.
fn distance(one: &str, other: &str) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.bytes().enumerate() {
        let mut corner = i;
        let mut left = i + 1;
        for (cell, b) in row.iter_mut().skip(1).zip(other.bytes()) {
            let up = *cell;
            left = (corner + usize::from(a != b)).min(up + 1).min(left + 1);
            (corner, *cell) = (up, left);
        }
        row[0] = i + 1;
    }
    row.last().copied().unwrap_or_default()
}

/// The names nearest to a word, at most four: those that contain it, or that differ in few letters.
pub(super) fn near<'a>(word: &str, names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let word = plain(word);
    let rank = |name: &'a str| {
        let other = plain(name);
        let contains = word.len() > 2 && other.contains(&word);
        let far = if contains { 0 } else { distance(&word, &other) };
        (far <= word.len() / 3).then_some((far, name))
    };
    let mut found: Vec<_> = names.filter_map(rank).collect();
    found.sort_by_key(|(far, _)| *far);
    found.dedup();
    found.into_iter().take(4).map(|(_, name)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_one_name_are_alike() {
        for name in ["IBV_WC_RETRY_EXC_ERR", "retry_exc_err", "RetryExcErr"] {
            assert_eq!(plain(name), "RETRYEXCERR", "{name}");
        }
        assert_eq!(plain("IBV_EVENT_QP_FATAL"), plain("QpFatal"));
    }

    #[test]
    fn the_nearest_names_are_found() {
        assert_eq!((distance("RETYR", "RETRY"), distance("", "AB")), (2, 2));
        let names = ["IBV_WC_RETRY_EXC_ERR", "IBV_WC_SUCCESS", "IBV_WC_FATAL_ERR"];
        assert_eq!(near("RETRY_EXC_ER", names.into_iter()), names[..1]);
        assert_eq!(near("FATL_ERR", names.into_iter()), names[2..]);
        assert!(near("nonsense", names.into_iter()).is_empty());
    }
}
