//! Libraries of Lua that are written in C (`lua_package_cpath`) find LuaJIT's functions in the program that loads them: the linker keeps and shows
//! these, and nothing else.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let of = |name: &str| std::env::var(name).unwrap_or_default();
    // A program without a loader (musl) loads nothing.
    if of("CARGO_CFG_TARGET_OS") == "linux" && of("CARGO_CFG_TARGET_ENV") == "gnu" {
        for names in ["lua_*", "luaL_*", "luaopen_*", "luaJIT_*"] {
            println!("cargo:rustc-link-arg-bins=-Wl,--export-dynamic-symbol={names}");
        }
    }
}
