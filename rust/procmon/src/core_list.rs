//! The kernel's notation of sets of cores.

use std::collections::BTreeSet;

/// `0-3,8` as a set. `None` for anything else, the empty text included.
pub(crate) fn parse_core_list(text: &[u8]) -> Option<BTreeSet<u32>> {
    let text = std::str::from_utf8(text).ok()?;
    let mut cores = BTreeSet::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        // No kernel has more cores than this; a longer range is no list of cores.
        if last < first || last - first > 1 << 16 {
            return None;
        }
        cores.extend(first..=last);
    }
    Some(cores)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cores() {
        let of = |text: &str| parse_core_list(text.as_bytes()).map(Vec::from_iter);
        assert_eq!(of("0"), Some(vec![0]));
        assert_eq!(of("0-2,8\n"), Some(vec![0, 1, 2, 8]));
        for bad in ["", "a", "3-1", "0-", "0-4294967295", "1,,2", "-"] {
            assert_eq!(of(bad), None, "{bad}");
        }
    }
}
