//! Lists a bucket of 100,000 keys with a C program, on the embedded lane and through a gateway.

mod harness;

use harness::{Lane, Program, run};

const DIRECTORIES: usize = 100;
const FILES: usize = 1000;

/// Returns the listed names in order, the number of pages, and the number of entries on the fullest page.
fn list(
    program: &Program,
    lane: &Lane,
    [prefix, marker, delimiter, max]: [&str; 4],
) -> (Vec<String>, usize, usize) {
    let mut command = program.command(&[]);
    command.args([&lane.host, &lane.access_key, &lane.secret_key, "big", prefix, marker, delimiter, max]);
    let said = run(&mut command);
    let mut lines: Vec<String> = said.lines().map(str::to_owned).collect();
    let last = lines.pop().expect("it prints the number of pages");
    let numbers: Vec<usize> =
        last.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect();
    (lines, numbers[0], numbers[1])
}

fn is_listed(lane: &Lane) {
    let bucket = lane.root.path().join("big");
    for directory in 0..DIRECTORIES {
        let directory = bucket.join(format!("d{directory:02}"));
        std::fs::create_dir_all(&directory).unwrap();
        (0..FILES).for_each(|file| std::fs::write(directory.join(format!("{file:03}")), "x").unwrap());
    }
    let all: Vec<String> =
        (0..DIRECTORIES * FILES).map(|i| format!("d{:02}/{:03} 1", i / FILES, i % FILES)).collect();
    let program = Program::compile("listing.c", &[]);
    let list = |words| list(&program, lane, words);

    let (names, pages, most) = list(["", "", "", "0"]);
    assert!(names == all, "{} names, the first other than expected", names.len());
    assert_eq!((pages, most), (100, 1000));
    let (names, pages, most) = list(["d42/", "d42/989", "", "7"]);
    assert_eq!((names.as_slice(), pages, most), (&all[42_990..43_000], 2, 7));
    let (names, pages, _) = list(["", "", "/", "30"]);
    assert_eq!((names.len(), names[99].as_str(), pages), (100, "+d99/", 4));
    let (names, ..) = list(["d0", "d05", "/", "0"]);
    assert_eq!(names, ["+d05/", "+d06/", "+d07/", "+d08/", "+d09/"]);
    let (names, ..) = list(["d99/99", "", "", "100000"]);
    assert_eq!(names, all[99_990..]);
}

#[test]
fn a_hundred_thousand_keys_on_the_embedded_lane() {
    is_listed(&Lane::embedded());
}

#[test]
fn a_hundred_thousand_keys_through_a_gateway() {
    is_listed(&Lane::http());
}
