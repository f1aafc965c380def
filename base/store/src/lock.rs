//! Object lock: versions that nobody may delete or replace before a date, or while a legal hold is on.
//!
//! A lock belongs to one version of an object. Object lock is enabled for a bucket by its configuration. Object lock
//! requires versioning and cannot be disabled. The rules are from the S3 user guide, "Locking objects with Object
//! Lock".

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::{Bucket, Error, ErrorKind, Key, Result, VersionId};

/// The maximum default retention period in days (S3's limit).
const DAYS_MAX: u32 = 36_500;
/// The maximum default retention period in years (S3's limit).
const YEARS_MAX: u32 = 100;
/// The number of days in each year of a retention period (S3's rule).
const DAYS_PER_YEAR: u64 = 365;
const MS_PER_DAY: u64 = 24 * 60 * 60 * 1000;

/// The mode of a retention, which determines which users may shorten or remove the retention before it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RetentionMode {
    /// Users who may change the bucket's settings can shorten or remove the retention, but only if they request to
    /// bypass it.
    Governance,
    /// Nobody can shorten or remove the retention.
    Compliance,
}

impl RetentionMode {
    /// All modes.
    pub const ALL: [RetentionMode; 2] = [RetentionMode::Governance, RetentionMode::Compliance];

    /// Returns S3's name for the mode.
    pub const fn name(self) -> &'static str {
        match self {
            RetentionMode::Governance => "GOVERNANCE",
            RetentionMode::Compliance => "COMPLIANCE",
        }
    }

    /// Returns the mode that has this name in S3.
    pub fn from_name(name: &str) -> Option<Self> {
        RetentionMode::ALL.into_iter().find(|mode| mode.name() == name)
    }
}

/// A date before which a version must not be deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// The mode, which determines which users may change the retention.
    pub mode: RetentionMode,
    /// The date, in milliseconds since 1970 (UTC).
    pub until_ms: u64,
}

impl Retention {
    /// Returns the date; 1970-01-01 if `SystemTime` cannot represent the date.
    pub fn until(&self) -> SystemTime {
        UNIX_EPOCH.checked_add(Duration::from_millis(self.until_ms)).unwrap_or(UNIX_EPOCH)
    }

    fn is_active(&self, now: SystemTime) -> bool {
        self.until_ms > ms_since_1970(now)
    }
}

/// Returns a time as milliseconds since 1970; 0 for an earlier time.
pub fn ms_since_1970(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The lock of one version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectLock {
    /// The retention, which may have ended.
    pub retention: Option<Retention>,
    /// Whether the legal hold is on; `None` if it was never set.
    pub legal_hold: Option<bool>,
}

impl ObjectLock {
    /// The lock of a version that was never locked.
    pub const NONE: ObjectLock = ObjectLock { retention: None, legal_hold: None };

    /// Returns whether the version was never locked.
    pub fn is_none(&self) -> bool {
        *self == ObjectLock::NONE
    }

    /// Checks that the version may be deleted at the time `now`. `bypass` is true if the caller may bypass a retention
    /// in governance mode and requests to do so. Errors: `AccessDenied`.
    pub fn check_delete(&self, now: SystemTime, bypass: bool) -> Result<()> {
        if self.legal_hold == Some(true) {
            return Err(locked("the version has a legal hold; remove the hold first"));
        }
        match self.retention.filter(|retention| retention.is_active(now)) {
            Some(Retention { mode: RetentionMode::Compliance, .. }) => {
                Err(locked("the version is retained in compliance mode; wait until its date"))
            }
            Some(Retention { mode: RetentionMode::Governance, .. }) if !bypass => {
                Err(locked("the version is retained in governance mode; wait until its date, or bypass it"))
            }
            _ => Ok(()),
        }
    }

    /// Returns whether the lock forbids deleting the version at the time `now`, unless the caller bypasses the
    /// retention.
    pub fn is_active(&self, now: SystemTime) -> bool {
        self.check_delete(now, false).is_err()
    }

    /// Checks the lock that the writer of a new version requests. Errors: `InvalidArgument` for a date that is not in
    /// the future.
    pub fn check_new(self, now: SystemTime) -> Result<()> {
        ObjectLock::NONE.with_retention(self.retention, now, false).map(drop)
    }

    /// Returns the lock with the retention `new`, or without a retention. Errors: `AccessDenied` if the present
    /// retention must not be shortened, removed or changed to the other mode; `InvalidArgument` for a date that is not
    /// in the future.
    pub fn with_retention(self, new: Option<Retention>, now: SystemTime, bypass: bool) -> Result<Self> {
        if new.is_some_and(|new| !new.is_active(now)) {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "the date of a retention must be in the future",
            ));
        }
        let present = self.retention.filter(|present| present.is_active(now));
        let is_free = match present {
            None => true,
            Some(present) => {
                let is_longer =
                    new.is_some_and(|new| new.mode == present.mode && new.until_ms >= present.until_ms);
                is_longer || (bypass && present.mode == RetentionMode::Governance)
            }
        };
        match is_free {
            true => Ok(ObjectLock { retention: new, ..self }),
            false => Err(locked("the present retention has not ended; it can only be extended")),
        }
    }
}

fn locked(why: &str) -> Error {
    Error::new(ErrorKind::AccessDenied, why)
}

/// The length of a default retention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetentionPeriod {
    /// Days.
    Days(u32),
    /// Years of 365 days.
    Years(u32),
}

impl RetentionPeriod {
    /// Checks the period against S3's limits: 1 to 36,500 days, or 1 to 100 years. Errors: `InvalidArgument`.
    pub fn check(self) -> Result<()> {
        let (count, most, unit) = match self {
            RetentionPeriod::Days(days) => (days, DAYS_MAX, "days"),
            RetentionPeriod::Years(years) => (years, YEARS_MAX, "years"),
        };
        match (1..=most).contains(&count) {
            true => Ok(()),
            false => {
                let why = format!("a default retention must be from 1 to {most} {unit}, not {count}");
                Err(Error::new(ErrorKind::InvalidArgument, why))
            }
        }
    }

    fn as_ms(self) -> u64 {
        match self {
            RetentionPeriod::Days(days) => u64::from(days) * MS_PER_DAY,
            RetentionPeriod::Years(years) => u64::from(years) * DAYS_PER_YEAR * MS_PER_DAY,
        }
    }
}

/// The retention of new versions whose writer specifies no retention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DefaultRetention {
    /// The mode, which determines which users may change the retention.
    pub mode: RetentionMode,
    /// The length of the retention.
    pub period: RetentionPeriod,
}

impl DefaultRetention {
    /// Returns the retention of a version that is written at the time `now`.
    pub fn from(self, now: SystemTime) -> Retention {
        Retention { mode: self.mode, until_ms: ms_since_1970(now).saturating_add(self.period.as_ms()) }
    }
}

/// The object lock configuration of a bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LockConfiguration {
    /// The default retention of new versions; `None` if new versions get no retention.
    pub default: Option<DefaultRetention>,
}

impl LockConfiguration {
    /// Checks the default retention. Errors: `InvalidArgument`.
    pub fn check(&self) -> Result<()> {
        self.default.map_or(Ok(()), |default| default.period.check())
    }

    /// Returns the lock of a version whose writer requests `asked` at the time `now`.
    pub fn lock_of(&self, asked: ObjectLock, now: SystemTime) -> ObjectLock {
        let retention = asked.retention.or_else(|| self.default.map(|default| default.from(now)));
        ObjectLock { retention, ..asked }
    }
}

/// Returns the error `InvalidArgument` for a lock in a bucket without object lock.
pub fn no_object_lock() -> Error {
    let why = "the bucket has no object lock; put an object lock configuration first";
    Error::new(ErrorKind::InvalidArgument, why)
}

/// The calls on the object lock configuration of buckets and on the locks of versions.
pub trait ObjectLockOperations {
    /// Returns the bucket's object lock; `None` if its objects cannot be locked. Errors: `NoSuchBucket`.
    fn lock_configuration(&self, bucket: &Bucket) -> Result<Option<LockConfiguration>>;

    /// Turns object lock on, or changes the default retention of new versions. Object lock cannot be turned off.
    /// Errors: `NoSuchBucket`; `InvalidArgument` for a period out of range, and if the bucket does not keep versions;
    /// `AccessDenied` for users without permission to change the bucket's settings.
    fn set_lock_configuration(&self, bucket: &Bucket, configuration: &LockConfiguration) -> Result<()>;

    /// Replaces or removes the retention of an object's latest version, or of `version`. `bypass` permits shortening or
    /// removing a retention in governance mode. Errors: as for [`Objects::get`](crate::Objects::get); `AccessDenied` if
    /// the present retention forbids the change, or if a user without permission to change the bucket's settings sets
    /// `bypass`; `InvalidArgument` in a bucket without object lock, unless the version has a lock, and for a date that
    /// is not in the future.
    fn set_retention(
        &self,
        bucket: &Bucket,
        key: &Key,
        version: Option<&VersionId>,
        retention: Option<Retention>,
        bypass: bool,
    ) -> Result<()>;

    /// Turns the legal hold of an object's latest version, or of `version`, on or off. Errors: as for
    /// [`Objects::get`](crate::Objects::get); `InvalidArgument` in a bucket without object lock, unless the version has
    /// a lock and the legal hold is turned off.
    fn set_legal_hold(
        &self,
        bucket: &Bucket,
        key: &Key,
        version: Option<&VersionId>,
        is_on: bool,
    ) -> Result<()>;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(day: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(day * MS_PER_DAY)
    }

    fn until(mode: RetentionMode, day: u64) -> Option<Retention> {
        Some(Retention { mode, until_ms: day * MS_PER_DAY })
    }

    #[test]
    fn a_version_is_deleted_only_after_its_date() {
        use RetentionMode::{Compliance, Governance};
        let of = |retention| ObjectLock { retention, legal_hold: None };
        for (lock, day, bypass, may) in [
            (ObjectLock::NONE, 1, false, true),
            (of(until(Governance, 5)), 4, false, false),
            (of(until(Governance, 5)), 4, true, true),
            (of(until(Governance, 5)), 5, false, true),
            (of(until(Compliance, 5)), 4, true, false),
            (of(until(Compliance, 5)), 5, false, true),
            (ObjectLock { legal_hold: Some(true), ..of(until(Governance, 5)) }, 6, true, false),
            (ObjectLock { legal_hold: Some(false), ..ObjectLock::NONE }, 1, false, true),
        ] {
            let done = lock.check_delete(at(day), bypass);
            assert_eq!(done.is_ok(), may, "{lock:?} on day {day}, bypass {bypass}");
        }
    }

    #[test]
    fn a_retention_is_only_extended() {
        use RetentionMode::{Compliance, Governance};
        for (present, new, bypass, may) in [
            (None, until(Governance, 5), false, true),
            (until(Governance, 5), until(Governance, 6), false, true),
            (until(Governance, 5), until(Governance, 4), false, false),
            (until(Governance, 5), until(Governance, 4), true, true),
            (until(Governance, 5), until(Compliance, 6), false, false),
            (until(Governance, 5), until(Compliance, 6), true, true),
            (until(Governance, 5), None, false, false),
            (until(Governance, 5), None, true, true),
            (until(Compliance, 5), until(Compliance, 6), false, true),
            (until(Compliance, 5), until(Compliance, 4), true, false),
            (until(Compliance, 5), until(Governance, 6), true, false),
            (until(Compliance, 5), None, true, false),
            (until(Compliance, 2), None, false, true),
        ] {
            let lock = ObjectLock { retention: present, legal_hold: Some(true) };
            let changed = lock.with_retention(new, at(3), bypass);
            assert_eq!(changed.is_ok(), may, "{present:?} to {new:?}, bypass {bypass}");
            if let Ok(changed) = changed {
                assert_eq!(changed, ObjectLock { retention: new, legal_hold: Some(true) });
            }
        }
        let past = ObjectLock::NONE.with_retention(until(Governance, 3), at(3), true);
        assert_eq!(past.unwrap_err().kind(), ErrorKind::InvalidArgument);
    }

    #[test]
    fn the_default_applies_to_those_who_ask_for_nothing() {
        let default = DefaultRetention { mode: RetentionMode::Compliance, period: RetentionPeriod::Years(1) };
        let configuration = LockConfiguration { default: Some(default) };
        let made = configuration.lock_of(ObjectLock::NONE, at(1));
        assert_eq!(made.retention, until(RetentionMode::Compliance, 366));
        let asked = ObjectLock { retention: until(RetentionMode::Governance, 2), legal_hold: Some(true) };
        assert_eq!(configuration.lock_of(asked, at(1)), asked);
        for (period, is_fit) in [
            (RetentionPeriod::Days(0), false),
            (RetentionPeriod::Days(36_500), true),
            (RetentionPeriod::Days(36_501), false),
            (RetentionPeriod::Years(100), true),
            (RetentionPeriod::Years(101), false),
        ] {
            assert_eq!(period.check().is_ok(), is_fit, "{period:?}");
        }
    }
}
