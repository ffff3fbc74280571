//! Looks the functions up by the two hash tables, as loaders do.

use super::*;

impl Checker<'_> {
    pub(super) fn hash_tables(&mut self) {
        for (name, _) in self.contract.functions() {
            let by_hash = self.look_up_by_hash(name).is_some();
            self.require(Rule::Hash, by_hash, || format!("DT_HASH does not find {name}"));
            let by_gnu_hash = self.look_up_by_gnu_hash(name).is_some();
            self.require(Rule::GnuHash, by_gnu_hash, || {
                format!("DT_GNU_HASH does not find {name}")
            });
        }
    }

    fn is_named(&self, index: u32, name: &str) -> bool {
        self.elf
            .symbol(index)
            .is_some_and(|symbol| symbol.name == name.as_bytes())
    }

    fn look_up_by_hash(&self, name: &str) -> Option<u32> {
        let table = self.elf.dynamic_offset(DT_HASH)?;
        let word = |index: u64| u32_at(self.image, table + 4 * index);
        let (buckets, symbols) = (u64::from(word(0)?), u64::from(word(1)?));
        if buckets == 0 || !self.elf.is_loaded(table, 4 * (2 + buckets + symbols)) {
            return None;
        }
        let mut index = word(2 + u64::from(object::elf::hash(name.as_bytes())) % buckets)?;
        // A chain is not longer than the table.
        for _ in 0..symbols {
            if index == 0 {
                break;
            }
            if self.is_named(index, name) {
                return Some(index);
            }
            index = word(2 + buckets + u64::from(index))?;
        }
        None
    }

    fn look_up_by_gnu_hash(&self, name: &str) -> Option<u32> {
        let table = self.elf.dynamic_offset(DT_GNU_HASH)?;
        let word = |at: u64| u32_at(self.image, at);
        let buckets = u64::from(word(table)?);
        let first = word(table + 4)?;
        let bloom_words = u64::from(word(table + 8)?);
        let bloom_shift = word(table + 12)?;
        let bloom_word_size = if self.elf.is_64() { 8 } else { 4 };
        let bucket_table = table + 16 + bloom_words * bloom_word_size;
        let chain_table = bucket_table + 4 * buckets;
        let chains = u64::from(self.elf.symbol_count().checked_sub(first)?);
        if buckets == 0 || bloom_words == 0 || !self.elf.is_loaded(table, chain_table + 4 * chains - table) {
            return None;
        }
        let hash = object::elf::gnu_hash(name.as_bytes());
        let bits = bloom_word_size * 8;
        let bloom_at = table + 16 + u64::from(hash) / bits % bloom_words * bloom_word_size;
        let bloom = bytes_at(self.image, bloom_at, bloom_word_size)?;
        let is_set = |bit: u64| bloom[(bit / 8) as usize] >> (bit % 8) & 1 == 1;
        let second = hash.checked_shr(bloom_shift)?;
        if !is_set(u64::from(hash) % bits) || !is_set(u64::from(second) % bits) {
            return None;
        }
        let start = word(bucket_table + 4 * (u64::from(hash) % buckets))?;
        for index in start.max(first)..self.elf.symbol_count() {
            let here = word(chain_table + 4 * u64::from(index - first))?;
            if here | 1 == hash | 1 && self.is_named(index, name) {
                return Some(index);
            }
            if here & 1 == 1 {
                break;
            }
        }
        None
    }
}
