//! What libs3 allows as a bucket's name.

use crate::status::Status;

/// The longest name in a path, and in a host's name.
const MAX_IN_PATH: usize = 255;
const MAX_IN_HOST: usize = 63;

/// The first fault of `name`, or `OK`. In a host's name there is less that it may be.
pub(crate) fn validate_bucket(name: &[u8], in_host: bool) -> Status {
    let max = if in_host { MAX_IN_HOST } else { MAX_IN_PATH };
    let mut before = 0;
    for (index, byte) in name.iter().copied().enumerate() {
        if index == max {
            return Status::InvalidBucketNameTooLong;
        }
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => {}
            _ if index == 0 => return Status::InvalidBucketNameFirstCharacter,
            b'_' if in_host => return Status::InvalidBucketNameCharacter,
            b'-' if in_host && before == b'.' => return Status::InvalidBucketNameCharacterSequence,
            b'.' if in_host && before == b'-' => return Status::InvalidBucketNameCharacterSequence,
            b'_' | b'-' | b'.' => {}
            _ => return Status::InvalidBucketNameCharacter,
        }
        before = byte;
    }
    let is_like_address = name.contains(&b'.') && name.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'.'));
    match name.len() {
        0..3 => Status::InvalidBucketNameTooShort,
        _ if is_like_address => Status::InvalidBucketNameDotQuadNotation,
        _ => Status::OK,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for (name, in_path, in_host) in [
            ("ior_1", Status::OK, Status::InvalidBucketNameCharacter),
            ("a-b.c", Status::OK, Status::OK),
            ("a.-b", Status::OK, Status::InvalidBucketNameCharacterSequence),
            ("a-.b", Status::OK, Status::InvalidBucketNameCharacterSequence),
            ("ab", Status::InvalidBucketNameTooShort, Status::InvalidBucketNameTooShort),
            ("", Status::InvalidBucketNameTooShort, Status::InvalidBucketNameTooShort),
            ("-ab", Status::InvalidBucketNameFirstCharacter, Status::InvalidBucketNameFirstCharacter),
            ("a b", Status::InvalidBucketNameCharacter, Status::InvalidBucketNameCharacter),
            ("1.2.3.4", Status::InvalidBucketNameDotQuadNotation, Status::InvalidBucketNameDotQuadNotation),
            (&"x".repeat(64), Status::OK, Status::InvalidBucketNameTooLong),
            (&"x".repeat(256), Status::InvalidBucketNameTooLong, Status::InvalidBucketNameTooLong),
        ] {
            assert_eq!(validate_bucket(name.as_bytes(), false), in_path, "{name}");
            assert_eq!(validate_bucket(name.as_bytes(), true), in_host, "{name}");
        }
    }
}
