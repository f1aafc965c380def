//! Sets the name by which the loader finds the library (its soname).

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libfordway.so.0");
}
