// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Finds the known names that a misspelled name may have meant.

/// Removes the differences between spellings of a name: `IBV_WC_RETRY_EXC_ERR`, `RETRY_EXC_ERR` and
/// `RetryExcErr` give the same result.
pub fn normalized(word: &str) -> String {
    let upper = word.trim().to_ascii_uppercase();
    let prefixes = ["IBV_WC_", "IB_WC_", "IBV_EVENT_", "IB_EVENT_"];
    let bare = prefixes
        .iter()
        .find_map(|prefix| upper.strip_prefix(prefix));
    let letters = bare.unwrap_or(&upper).chars();
    letters.filter(char::is_ascii_alphanumeric).collect()
}

/// Returns the number of letters to replace, insert, delete or swap with their neighbour that turns
/// one word into the other.
fn distance(one: &str, other: &str) -> usize {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    let mut older = Vec::new();
    let mut last: Vec<usize> = (0..=other.len()).collect();
    for i in 1..=one.len() {
        let mut row = vec![i];
        for j in 1..=other.len() {
            let differ = usize::from(one[i - 1] != other[j - 1]);
            let mut least = (last[j - 1] + differ).min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && one[i - 1] == other[j - 2] && one[i - 2] == other[j - 1] {
                least = least.min(older[j - 2] + 1);
            }
            row.push(least);
        }
        older = std::mem::replace(&mut last, row);
    }
    last.last().copied().unwrap_or_default()
}

/// Returns up to four names nearest to a word: names that contain it, or that differ in few
/// letters.
pub fn similar_names<'a>(word: &str, names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let word = normalized(word);
    let rank = |name: &'a str| {
        let other = normalized(name);
        let contains = word.len() > 2 && other.contains(&word);
        let far = if contains { 0 } else { distance(&word, &other) };
        (far <= word.len() / 3).then_some((far, name))
    };
    let mut found: Vec<_> = names.filter_map(rank).collect();
    found.sort_by_key(|(far, _)| *far);
    found.dedup();
    found.into_iter().take(4).map(|(_, name)| name).collect()
}

/// Returns the name that is nearest to a word, or the first words of a name: `RDMA WRTE` may mean
/// `RDMA WRITE` where there is `RDMA WRITE First`.
pub fn most_similar_name<'a>(word: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let beginnings = names.flat_map(|name| {
        let blanks = name.match_indices(' ').map(|(end, _)| &name[..end]);
        blanks.chain([name]).collect::<Vec<_>>()
    });
    let found = similar_names(word, beginnings);
    let first = *found.first()?;
    // A word that is part of several names is nearest to none of them.
    let has = |name: &str| normalized(name).contains(&normalized(word));
    let is_part = found.iter().filter(|name| has(name));
    let others = is_part.filter(|name| !name.starts_with(first)).count();
    (others == 0 || !has(first)).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_one_name_are_alike() {
        for name in ["IBV_WC_RETRY_EXC_ERR", "retry_exc_err", "RetryExcErr"] {
            assert_eq!(normalized(name), "RETRYEXCERR", "{name}");
        }
        assert_eq!(normalized("IBV_EVENT_QP_FATAL"), normalized("QpFatal"));
    }

    #[test]
    fn the_nearest_names_are_found() {
        assert_eq!((distance("RETYR", "RETRY"), distance("", "AB")), (1, 2));
        let names = ["IBV_WC_RETRY_EXC_ERR", "IBV_WC_SUCCESS", "IBV_WC_FATAL_ERR"];
        assert_eq!(similar_names("RETRY_EXC_ER", names.into_iter()), names[..1]);
        assert_eq!(similar_names("FATL_ERR", names.into_iter()), names[2..]);
        assert!(similar_names("nonsense", names.into_iter()).is_empty());
    }

    #[test]
    fn the_nearest_beginning_of_a_name_is_found() {
        let names = ["RDMA WRITE First", "RDMA WRITE Only", "RDMA READ Request"];
        let nearest = |word| most_similar_name(word, names.into_iter());
        assert_eq!(nearest("RDMA WRTE"), Some("RDMA WRITE"));
        assert_eq!(nearest("rdma raed"), Some("RDMA READ"));
        assert_eq!((nearest("nonsense"), nearest("RDMA")), (None, Some("RDMA")));
        assert_eq!(
            most_similar_name("CREATE", ["CREATE_CQ", "CREATE_QP"].into_iter()),
            None
        );
    }
}
