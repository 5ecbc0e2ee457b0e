//! Names the library to the loader, and leaves it empty in a release build.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=KVO_FAKECUDA");
    println!("cargo::rustc-check-cfg=cfg(kvo_fakecuda_armed)");
    // `PROFILE` is `release` for every profile that inherits from it.
    let is_release = std::env::var("PROFILE").as_deref() != Ok("debug");
    let is_model = std::env::var("KVO_FAKECUDA").as_deref() == Ok("model");
    if is_release && !is_model {
        return;
    }
    println!("cargo::rustc-cfg=kvo_fakecuda_armed");
    // A later `dlopen("libcuda.so")` of this process gets the library that has this name.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so");
    // The library's own table holds its own functions, whatever a program defines under their names.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
}
