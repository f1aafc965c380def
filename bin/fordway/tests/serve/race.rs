//! Tests writers that race for keys, through two gateways and in this process.

use std::sync::{Arc, Barrier};

use fordway_posix::{PosixConfig, PosixStore};
use fordway_store::{Conditions, ErrorKind, GetOptions, Key, PutOptions, Store};

use crate::process::{Process, bucket, place};

/// Returns the number of keys that writers race for.
fn keys() -> usize {
    if std::env::var_os("FORDWAY_SOAK").is_some() { 1000 } else { 200 }
}

#[test]
fn of_eight_racing_creators_exactly_one_wins_each_key() {
    let dir = place();
    let gateways = [Process::start(dir.path(), &[]), Process::start(dir.path(), &[])];
    let embedded = PosixStore::open(&dir.path().join("root"), PosixConfig::default()).unwrap();
    let embedded: Arc<dyn Store> = Arc::new(embedded);
    let stores: Vec<Arc<dyn Store>> = (0..8)
        .map(|writer| match writer {
            0..6 => Arc::new(gateways[writer % 2].client()),
            _ => embedded.clone(),
        })
        .collect();
    let start = Arc::new(Barrier::new(stores.len()));
    let writers: Vec<_> = stores
        .into_iter()
        .enumerate()
        .map(|(writer, store)| {
            let start = start.clone();
            std::thread::spawn(move || race(writer, &*store, &start))
        })
        .collect();
    let won: Vec<Vec<bool>> = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
    for number in 0..keys() {
        let winners: Vec<usize> = (0..won.len()).filter(|writer| won[*writer][number]).collect();
        assert_eq!(winners.len(), 1, "of key {number}: {winners:?}");
        let mut body = Vec::new();
        embedded.read(&bucket(), &key(number), &GetOptions::default(), &mut body).unwrap();
        assert_eq!(body, [winners[0] as u8], "of key {number}");
    }
    assert!(won.iter().filter(|won| won.contains(&true)).count() > 1, "nobody raced");
}

fn key(number: usize) -> Key {
    Key::new(format!("dir{}/{number}", number / 50)).unwrap()
}

/// Returns, for each key, whether this writer created it.
fn race(writer: usize, store: &dyn Store, start: &Barrier) -> Vec<bool> {
    let options = PutOptions { conditions: Conditions::create_only(), ..Default::default() };
    (0..keys())
        .map(|number| {
            start.wait();
            match store.put(&bucket(), &key(number), &[writer as u8], &options) {
                Ok(_) => true,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::PreconditionFailed, "{error}");
                    false
                }
            }
        })
        .collect()
}
