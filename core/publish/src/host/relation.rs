//! The guest's counter as a function of the host's.

use fastpath_clock::{Bracket, Sample};

/// guest = ((host * multiplier) >> fraction_bits) + offset, modulo 2^64: the definition of virtualised counters.
///
/// Intel SDM volume 3, "TSC Multiplier" (48 bits of fraction) and "TSC offset"; AMD APM volume 2, "TSC Ratio MSR" (32
/// bits); Arm ARM, CNTVOFF_EL2 (subtracted, so its negative is the offset here).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Relation {
    multiplier: u64,
    fraction_bits: u32,
    offset: u64,
}

/// Error: the numbers are not those of a relation of counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a counter's multiplier is not 0 and has at most 63 bits of fraction, not {multiplier} with {fraction_bits}; \
     give the ratio as the hypervisor's register has it"
)]
pub struct BadRelation {
    /// The multiplier that was given.
    pub multiplier: u64,
    /// The bits of fraction that were given.
    pub fraction_bits: u32,
}

impl Relation {
    /// The guest's counter is the host's, or the host's samples are already in guest counts.
    pub const SAME: Relation = Relation {
        multiplier: 1,
        fraction_bits: 0,
        offset: 0,
    };

    /// Returns the relation with these numbers.
    pub fn new(multiplier: u64, fraction_bits: u32, offset: u64) -> Result<Relation, BadRelation> {
        if multiplier == 0 || fraction_bits > 63 {
            return Err(BadRelation {
                multiplier,
                fraction_bits,
            });
        }
        Ok(Relation {
            multiplier,
            fraction_bits,
            offset,
        })
    }

    /// Returns what the guest reads when the host reads `host`.
    pub fn guest(&self, host: u64) -> u64 {
        let scaled = (u128::from(host) * u128::from(self.multiplier)) >> self.fraction_bits;
        (scaled as u64).wrapping_add(self.offset)
    }

    /// Converts a bracket of the host to the guest's counts.
    pub(crate) fn guest_bracket(&self, host: Bracket) -> Bracket {
        Bracket {
            before: self.guest(host.before),
            time_ns: host.time_ns,
            after: self.guest(host.after),
        }
    }

    /// Converts a sample of the host to the guest's counts.
    pub(crate) fn guest_sample(&self, host: &Sample) -> Sample {
        let bracket = |host| self.guest_bracket(host);
        Sample {
            mono: bracket(host.mono),
            real: bracket(host.real),
            raw: host.raw.map(bracket),
            boot: host.boot.map(bracket),
            tai: host.tai.map(bracket),
            ntp: host.ntp,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_with_a_counter_set_to_zero_reads_the_time_passed_since() {
        let relation = Relation::new(1, 0, 5_000_u64.wrapping_neg()).expect("a relation");
        assert_eq!(relation.guest(7_500), 2_500);
    }

    #[test]
    fn intels_and_amds_ratios_say_the_same() {
        // 2.0 GHz for the guest on a host of 2.5 GHz.
        let intel = Relation::new((4 << 48) / 5, 48, 1_000).expect("a relation");
        let amd = Relation::new((4 << 32) / 5, 32, 1_000).expect("a relation");
        let host = 2_500_000_000 * 86_400;
        let exact = 2_000_000_000 * 86_400 + 1_000;
        // Error of the ratio's last bit after a day.
        assert!(exact - intel.guest(host) <= 1 + (host >> 48));
        assert!(exact - amd.guest(host) <= 1 + (host >> 32));
    }

    #[test]
    fn counts_of_many_years_are_scaled_without_losing_bits() {
        let relation = Relation::new(3 << 47, 48, 0).expect("a relation");
        assert_eq!(relation.guest(1 << 63), 3 << 62);
        assert_eq!(relation.guest(u64::MAX), ((u128::from(u64::MAX) * 3) >> 1) as u64);
    }

    #[test]
    fn nonsense_is_refused() {
        assert!(Relation::new(0, 48, 0).is_err());
        assert!(Relation::new(1, 64, 0).is_err());
    }
}
