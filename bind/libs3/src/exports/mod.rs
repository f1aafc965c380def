//! The functions that C calls. Each function has the arguments that the header declares, and passes them to `requests`,
//! which is shared by both ABIs.

mod general;
mod requests;
pub mod v2_0;
pub mod v4_1;

pub use general::*;

/// Defines functions that are exported under their own names in builds to which `$when` applies.
macro_rules! exported {
    (
        when $when:meta;
        $($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)? $body:block)*
    ) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// All arguments are as the header describes. Each pointer is NULL or points to a structure, a C string or a
        /// buffer of the given size. Each callback may be called with `data`.
        #[cfg_attr($when, unsafe(no_mangle))]
        #[allow(non_snake_case, reason = "the name is that of the C interface")]
        pub unsafe extern "C" fn $name($($argument: $type),*) $(-> $result)? $body
    )*};
}
use exported;
