//! The last few values of a sequence, in place: a publisher may run where nothing can be allocated.

use std::ops::Deref;

/// At most `N` values, oldest first. One more drops the oldest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recent<T, const N: usize> {
    values: [T; N],
    count: usize,
}

impl<T: Copy + Default, const N: usize> Default for Recent<T, N> {
    fn default() -> Recent<T, N> {
        Recent {
            values: [T::default(); N],
            count: 0,
        }
    }
}

impl<T: Copy, const N: usize> Recent<T, N> {
    /// Appends a value.
    pub(crate) fn push(&mut self, value: T) {
        if self.count == N {
            self.drop_oldest(1);
        }
        self.values[self.count] = value;
        self.count += 1;
    }

    /// Drops the oldest `count` values, or all.
    pub(crate) fn drop_oldest(&mut self, count: usize) {
        let count = count.min(self.count);
        // Moves a few kilobytes at most ten times a second, and keeps the values contiguous.
        self.values.copy_within(count..self.count, 0);
        self.count -= count;
    }

    /// Drops the values for which `keep` returns false.
    pub(crate) fn retain(&mut self, keep: impl Fn(&T) -> bool) {
        let mut kept = 0;
        for index in 0..self.count {
            if keep(&self.values[index]) {
                self.values[kept] = self.values[index];
                kept += 1;
            }
        }
        self.count = kept;
    }

    /// Changes every value.
    pub(crate) fn change(&mut self, change: impl FnMut(&mut T)) {
        self.values[..self.count].iter_mut().for_each(change);
    }

    /// Drops all values.
    pub(crate) fn clear(&mut self) {
        self.count = 0;
    }
}

impl<T, const N: usize> Deref for Recent<T, N> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.values[..self.count]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_more_than_fits_drops_the_oldest() {
        let mut recent = Recent::<u32, 3>::default();
        for value in 1..=5 {
            recent.push(value);
        }
        assert_eq!(*recent, [3, 4, 5]);
        recent.drop_oldest(2);
        assert_eq!(*recent, [5]);
        recent.drop_oldest(2);
        assert!(recent.is_empty());
    }

    #[test]
    fn retain_keeps_the_rest_in_order() {
        let mut recent = Recent::<u32, 8>::default();
        for value in 1..=6 {
            recent.push(value);
        }
        recent.retain(|value| value % 2 == 0);
        assert_eq!(*recent, [2, 4, 6]);
        recent.clear();
        assert!(recent.is_empty());
    }
}
