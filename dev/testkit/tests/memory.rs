//! The suite on the model itself.

use fordway_store::MemoryStore;
use fordway_testkit::conformance::Fixture;

fordway_testkit::conformance_suite!(Fixture::new(MemoryStore::default(), ()));
