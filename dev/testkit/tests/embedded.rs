//! Runs the conformance suite and the model test on the embedded lane.

use fordway_posix::{PosixConfig, PosixStore};
use fordway_testkit::conformance::StoreFixture;
use fordway_testkit::model;
use proptest::prelude::*;

fn open() -> StoreFixture {
    let dir = tempfile::tempdir().unwrap();
    StoreFixture::new(PosixStore::open(dir.path(), PosixConfig::default()).unwrap(), dir)
}

fordway_testkit::conformance_suite!(open());

proptest! {
    #![proptest_config(model::config(300))]

    #[test]
    fn random_operations_agree_with_the_model(operations in model::operations(60)) {
        model::check(&*open(), &operations);
    }

    #[test]
    fn versions_agree_with_the_model(operations in model::versioned_operations(60)) {
        model::check(&*open(), &operations);
    }
}
