//! Runs the conformance suite on the in-memory store, which is the model of other tests.

use fordway_store::MemoryStore;
use fordway_testkit::conformance::StoreFixture;

fordway_testkit::conformance_suite!(StoreFixture::new(MemoryStore::default(), ()));
