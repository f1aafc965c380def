//! Sets the name by which the linker and the loader find the library (its soname).

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let major = if std::env::var_os("CARGO_FEATURE_ABI_2_0").is_some() { 2 } else { 4 };
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libs3.so.{major}");
}
