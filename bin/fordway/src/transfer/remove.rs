//! Removing, in the batches of 1,000 that services take in one request.

use std::path::PathBuf;

use fordway_command::{Address, file_error};
use fordway_store::{Bucket, Deleted, Key, Result};

use super::{Action, Runner, Task};

const BATCH_KEYS: usize = 1000;

/// Turns actions into tasks, gathering the removals of one bucket.
pub(super) fn batched(actions: impl Iterator<Item = Result<Action>>) -> impl Iterator<Item = Task> {
    Batches { actions, doomed: None }
}

struct Batches<I> {
    actions: I,
    doomed: Option<(Bucket, Vec<Key>)>,
}

impl<I: Iterator<Item = Result<Action>>> Batches<I> {
    /// Adds a key to the batch; a batch that is full or of another bucket comes out.
    fn gather(&mut self, bucket: Bucket, key: Key) -> Option<Task> {
        match &mut self.doomed {
            Some((same, keys)) if *same == bucket && keys.len() < BATCH_KEYS => {
                keys.push(key);
                None
            }
            other => {
                other.replace((bucket, vec![key])).map(|(bucket, keys)| Task::RemoveObjects(bucket, keys))
            }
        }
    }
}

impl<I: Iterator<Item = Result<Action>>> Iterator for Batches<I> {
    type Item = Task;

    fn next(&mut self) -> Option<Task> {
        loop {
            let task = match self.actions.next() {
                None => return self.doomed.take().map(|(bucket, keys)| Task::RemoveObjects(bucket, keys)),
                Some(Err(error)) => Some(Task::Failed(error)),
                Some(Ok(Action::Copy { from, to, size })) => Some(Task::Copy { from, to, size }),
                Some(Ok(Action::Remove(Address::Local(path)))) => Some(Task::RemoveFile(path)),
                Some(Ok(Action::Remove(place))) => match place.into_object() {
                    Ok((bucket, key)) => self.gather(bucket, key),
                    Err(error) => Some(Task::Failed(error)),
                },
            };
            if task.is_some() {
                return task;
            }
        }
    }
}

impl Runner<'_> {
    pub(super) fn remove_objects(&self, bucket: &Bucket, keys: &[Key]) {
        let results = match self.settings.dry_run {
            true => keys.iter().map(|_| Ok(Deleted::default())).collect(),
            false => self.store().delete_many(bucket, keys),
        };
        for (key, result) in keys.iter().zip(results) {
            match result {
                Ok(_) => self.removed(&Address::S3(bucket.clone(), key.as_str().to_owned())),
                Err(error) => self.failed(&error),
            }
        }
    }

    pub(super) fn remove_file(&self, path: PathBuf) {
        let result = if self.settings.dry_run { Ok(()) } else { std::fs::remove_file(&path) };
        match result {
            Ok(()) => self.removed(&Address::Local(path)),
            Err(error) => self.failed(&file_error("removing", path.display(), error)),
        }
    }

    fn removed(&self, place: &Address) {
        self.done("delete", place, None, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_of_one_bucket_and_at_most_a_thousand() {
        let bucket = |name: &str| Bucket::new(name).unwrap();
        let keys = |name: &'static str, count: usize| {
            (0..count).map(move |i| Ok(Action::Remove(Address::S3(bucket(name), format!("k{i}")))))
        };
        let sizes: Vec<(String, usize)> = batched(keys("one", 2500).chain(keys("two", 3)))
            .map(|task| match task {
                Task::RemoveObjects(bucket, keys) => (bucket.to_string(), keys.len()),
                _ => panic!("only removals were asked for"),
            })
            .collect();
        let expected = [("one", 1000), ("one", 1000), ("one", 500), ("two", 3)];
        assert_eq!(sizes, expected.map(|(name, count)| (name.to_owned(), count)));
    }
}
