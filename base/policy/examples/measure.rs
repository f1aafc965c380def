//! Measures decisions over 50 statements, for `bench/policy`. Other processes on the machine can only slow down a block
//! of decisions, so the time of the fastest block is also printed.

#![allow(clippy::print_stdout, reason = "the table of the benchmark")]

use std::hint::black_box;
use std::time::Instant;

use fordway_policy::{AccessRequest, Action, ConditionKeyValues, Policy, Principal, Verdict};

const STATEMENTS: usize = 50;
const BLOCKS: usize = 200;
const DECISIONS: u32 = 1000;

fn main() {
    for (name, condition, expected) in [
        ("the last statement allows", "", Verdict::Allowed),
        (
            "each statement has two conditions",
            r#", "Condition": {"IpAddress": {"aws:SourceIp": "10.0.0.0/8"}, "StringLike": {"aws:Referer": "https://*.org/*"}}"#,
            Verdict::Allowed,
        ),
        (
            "each statement has a variable",
            r#", "Condition": {"StringEquals": {"aws:userid": "${aws:username}"}}"#,
            Verdict::Allowed,
        ),
    ] {
        let policy =
            Policy::parse(document(condition).as_bytes(), "bucket").expect("the policy is well formed");
        let request = request();
        assert_eq!(policy.decide(&request).verdict, expected, "{name}");
        let mut blocks: Vec<f64> = (0..BLOCKS).map(|_| block_ns(&policy, &request)).collect();
        blocks.sort_by(f64::total_cmp);
        println!("{name:36} median {:7.0} ns  fastest {:7.0} ns", blocks[BLOCKS / 2], blocks[0]);
    }
}

/// Returns the average time per decision in a block of decisions, in nanoseconds.
fn block_ns(policy: &Policy, request: &AccessRequest<'_>) -> f64 {
    let started = Instant::now();
    for _ in 0..DECISIONS {
        black_box(policy.decide(black_box(request)));
    }
    started.elapsed().as_secs_f64() * 1e9 / f64::from(DECISIONS)
}

/// Returns a policy whose statements differ only in their effect and in the run number of their resource. Only the last
/// statement matches the request.
fn document(condition: &str) -> String {
    let statement = |at: usize| {
        format!(
            r#"{{"Effect": "{}", "Principal": {{"AWS": ["alice", "bob"]}}, "Action": ["s3:Get*", "s3:PutObject"],
                "Resource": "arn:aws:s3:::bucket/projects/*/run-{at:02}/*.h5"{condition}}}"#,
            if at % 10 == 3 { "Deny" } else { "Allow" }
        )
    };
    let statements: Vec<_> = (0..STATEMENTS).map(statement).collect();
    format!(r#"{{"Version": "2012-10-17", "Statement": [{}]}}"#, statements.join(","))
}

fn request() -> AccessRequest<'static> {
    let mut keys = ConditionKeyValues::default();
    for (key, value) in [
        ("aws:currenttime", "2026-01-01T00:00:00Z"),
        ("aws:securetransport", "true"),
        ("aws:sourceip", "10.1.2.3"),
        ("aws:useragent", "Boto3/1.44"),
        ("aws:referer", "https://data.example.org/page"),
        ("aws:userid", "bob"),
        ("aws:username", "bob"),
    ] {
        keys.add(key, value);
    }
    AccessRequest {
        principal: Principal::User("bob"),
        action: Action::new("GetObject").expect("it is an action"),
        bucket: "bucket",
        key: Some("projects/climate/2026/run-49/output.h5"),
        keys,
    }
}
