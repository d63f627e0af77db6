//! Storage quota: how many objects and bytes the objects of a plane may take.
//!
//! A write is refused only for a figure that it increases: at the limit, and above a limit that was lowered,
//! objects can still be deleted and made smaller.

use std::fmt;

/// The objects of a plane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StorageUsage {
    /// Number of objects.
    pub objects: u64,
    /// Bytes of their JSON.
    pub bytes: u64,
}

/// The limits of a plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StorageQuota {
    /// Most objects.
    pub objects: u64,
    /// Most bytes of their JSON.
    pub bytes: u64,
}

/// A write would exceed the quota of its plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "exceeded the storage quota of the plane: it has {used} of {limit} {unit}, and the write adds {added}; delete objects, or ask the platform operator for a higher limit"
)]
pub struct QuotaExceeded {
    /// The figure before the write.
    pub used: u64,
    /// Its limit.
    pub limit: u64,
    /// What the write adds.
    pub added: u64,
    /// What is counted.
    pub unit: StorageUnit,
}

/// What a quota counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StorageUnit {
    /// Objects.
    Objects,
    /// Bytes.
    Bytes,
}

impl fmt::Display for StorageUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Objects => "objects",
            Self::Bytes => "bytes",
        })
    }
}

impl StorageUsage {
    /// The usage after a write that replaces an object of `old` bytes by one of `new` bytes; `None` for no
    /// object.
    pub fn after(self, old: Option<u64>, new: Option<u64>) -> Self {
        let change = |figure: u64, old: u64, new: u64| (figure + new).saturating_sub(old);
        Self {
            objects: change(self.objects, old.is_some().into(), new.is_some().into()),
            bytes: change(self.bytes, old.unwrap_or(0), new.unwrap_or(0)),
        }
    }
}

impl StorageQuota {
    /// Whether a plane may write an object of `new` bytes in place of one of `old` bytes.
    pub fn admit(
        &self,
        usage: StorageUsage,
        old: Option<u64>,
        new: Option<u64>,
    ) -> Result<(), QuotaExceeded> {
        let after = usage.after(old, new);
        for (unit, used, after, limit) in [
            (StorageUnit::Objects, usage.objects, after.objects, self.objects),
            (StorageUnit::Bytes, usage.bytes, after.bytes, self.bytes),
        ] {
            if after > used && after > limit {
                return Err(QuotaExceeded { used, limit, added: after - used, unit });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_is_refused_only_for_a_figure_that_it_increases_beyond_its_limit() {
        let quota = StorageQuota { objects: 2, bytes: 100 };
        let usage = |objects, bytes| StorageUsage { objects, bytes };
        let exceeded = |used, limit, added, unit| Err(QuotaExceeded { used, limit, added, unit });
        for (usage, old, new, admitted) in [
            (usage(1, 50), None, Some(50), Ok(())),
            (usage(1, 50), None, Some(51), exceeded(50, 100, 51, StorageUnit::Bytes)),
            (usage(2, 20), None, Some(1), exceeded(2, 2, 1, StorageUnit::Objects)),
            (usage(2, 100), Some(10), Some(10), Ok(())),
            (usage(2, 100), Some(10), Some(11), exceeded(100, 100, 1, StorageUnit::Bytes)),
            (usage(9, 900), Some(10), Some(9), Ok(())),
            (usage(9, 900), Some(10), None, Ok(())),
        ] {
            assert_eq!(quota.admit(usage, old, new), admitted, "{usage:?} {old:?} {new:?}");
        }
    }

    #[test]
    fn the_usage_follows_each_write() {
        let start = StorageUsage::default();
        let created = start.after(None, Some(10));
        let grown = created.after(Some(10), Some(25));
        assert_eq!(grown, StorageUsage { objects: 1, bytes: 25 });
        assert_eq!(grown.after(Some(25), None), start);
    }
}
