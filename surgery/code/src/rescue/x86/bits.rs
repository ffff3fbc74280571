//! A set of small numbers.

use std::ops::Range;

/// A bit for each number below a limit.
#[derive(Debug, Clone, Default)]
pub(crate) struct Bits {
    words: Vec<u64>,
    limit: usize,
}

impl Bits {
    pub(crate) fn new(limit: usize) -> Bits {
        Bits {
            words: vec![0; limit.div_ceil(64)],
            limit,
        }
    }

    /// Adds a number. Ignores one at or above the limit.
    pub(crate) fn add(&mut self, number: usize) {
        if number < self.limit {
            self.words[number / 64] |= 1 << (number % 64);
        }
    }

    /// Removes a number. Returns whether it was there.
    pub(crate) fn remove(&mut self, number: usize) -> bool {
        let was_there = self.has(number);
        if was_there {
            self.words[number / 64] &= !(1 << (number % 64));
        }
        was_there
    }

    pub(crate) fn has(&self, number: usize) -> bool {
        number < self.limit && self.words[number / 64] & 1 << (number % 64) != 0
    }

    /// Returns the lowest number of the set in a range.
    pub(crate) fn first_in(&self, mut range: Range<usize>) -> Option<usize> {
        range.find(|number| self.has(*number))
    }

    /// Returns the highest number of the set below `number`, at most `reach` below.
    pub(crate) fn last_before(&self, number: usize, reach: usize) -> Option<usize> {
        (number.saturating_sub(reach)..number)
            .rev()
            .find(|number| self.has(*number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_searched_without_their_ends() {
        let mut bits = Bits::new(130);
        [3, 64, 129, 130].into_iter().for_each(|number| bits.add(number));
        assert_eq!(bits.first_in(4..129), Some(64));
        assert_eq!(bits.first_in(65..129), None);
        assert_eq!(bits.last_before(129, 70), Some(64));
        assert_eq!(bits.last_before(64, 60), None);
        assert!(bits.has(129) && !bits.has(130));
        assert!(bits.remove(129) && !bits.remove(129) && !bits.remove(130));
        assert!(!bits.has(129) && bits.has(64));
    }
}
