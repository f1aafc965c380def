//! Determines whether a policy is public (see "The meaning of 'public'" in the S3 user guide, page "Blocking public
//! access to your Amazon S3 storage").

use crate::condition::{Condition, IpNetwork};
use crate::document::{Effect, Policy, Statement};

/// The condition keys whose fixed values restrict a statement to known callers, except values that anonymous callers
/// have.
const KEYS: [&str; 4] =
    ["aws:principalarn", "aws:userid", "aws:username", "s3:x-amz-server-side-encryption-aws-kms-key-id"];
/// The value of `aws:userid` for anonymous callers, who are not known.
pub const ANONYMOUS_USER_ID: &str = "anonymous";
/// The prefix lengths, for IPv4 and IPv6, below which a network counts as public.
const PREFIX_BITS: (u8, u8) = (8, 32);

impl Policy {
    /// Returns whether a statement allows requests by callers that the statement does not identify.
    pub fn is_public(&self) -> bool {
        self.statements.iter().any(Statement::is_public)
    }
}

impl Statement {
    fn is_public(&self) -> bool {
        self.effect == Effect::Allow
            && self.principals.is_everybody
            && !self.conditions.iter().any(restricts_to_known)
    }
}

fn restricts_to_known(condition: &Condition) -> bool {
    let is_narrow = |network: &IpNetwork| {
        network.prefix_bits() >= if network.is_v4 { PREFIX_BITS.0 } else { PREFIX_BITS.1 }
    };
    match condition.key.as_str() {
        "aws:sourceip" => condition.networks().is_some_and(|networks| networks.iter().all(is_narrow)),
        key => {
            let fits_anonymous = key == "aws:userid" && condition.has_fixed_value(ANONYMOUS_USER_ID);
            KEYS.contains(&key) && condition.has_fixed_values() && !fits_anonymous
        }
    }
}
