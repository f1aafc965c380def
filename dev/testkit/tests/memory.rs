//! The suite, run on the model itself.

use fordway_store::MemoryStore;
use fordway_testkit::conformance::StoreFixture;

fordway_testkit::conformance_suite!(StoreFixture::new(MemoryStore::default(), ()));
