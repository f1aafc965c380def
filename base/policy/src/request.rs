//! The properties of a request that a policy can refer to.

use std::borrow::Cow;

use crate::action::Action;
use crate::principal::Principal;

/// The properties of one request that policies can refer to.
#[derive(Clone, Debug)]
pub struct AccessRequest<'r> {
    /// The caller, who may be anonymous.
    pub principal: Principal<'r>,
    /// The action that the request needs.
    pub action: Action,
    /// The name of the bucket.
    pub bucket: &'r str,
    /// The key of the object; `None` for an action on the bucket.
    pub key: Option<&'r str>,
    /// The values of condition keys.
    pub keys: ConditionKeyValues<'r>,
}

/// The values of condition keys. Keys without a value are absent.
#[derive(Clone, Debug, Default)]
pub struct ConditionKeyValues<'r>(Vec<(Cow<'r, str>, Cow<'r, str>)>);

impl<'r> ConditionKeyValues<'r> {
    /// Adds a value for a key. `key` is in lower case, such as `aws:sourceip`; the name of a tag keeps its case. A key
    /// may have several values.
    pub fn add(&mut self, key: impl Into<Cow<'r, str>>, value: impl Into<Cow<'r, str>>) {
        self.0.push((key.into(), value.into()));
    }

    /// Returns the values of a key, in the order in which they were added.
    pub(crate) fn values<'k>(&'k self, key: &'k str) -> impl Iterator<Item = &'k str> {
        self.0.iter().filter(move |(known, _)| known == key).map(|(_, value)| &**value)
    }

    /// Replaces all values of a key.
    pub fn replace(&mut self, key: &str, values: impl IntoIterator<Item = Cow<'r, str>>) {
        self.0.retain(|(known, _)| known != key);
        self.0.extend(values.into_iter().map(|value| (Cow::Owned(key.to_owned()), value)));
    }
}
