//! The daemon's program, which Cargo builds by itself only for targets in the same package.

use std::path::PathBuf;

use crate::support::{cargo, root};

/// Cargo's folder, into which `make` fetches HAProxys, too. A bench is TARGET/PROFILE/deps/BENCH.
pub(crate) fn target() -> PathBuf {
    folder_above(3)
}

fn folder_above(levels: usize) -> PathBuf {
    let bench = std::env::current_exe().expect("this program");
    bench.ancestors().nth(levels).expect("a folder of Cargo's").to_owned()
}

/// Builds it in the profile that this bench was built in, unless it is there.
pub(crate) fn build() {
    let folder = folder_above(2);
    let profile = folder.file_name().expect("a name").to_str().expect("a name of ours");
    let mut build = cargo();
    build.args(["build", "--locked", "--quiet", "--bin", "gcra-spoa", "--target-dir"]);
    build.arg(target()).current_dir(root());
    match profile {
        // With the features that tests have, so that nothing is built for them once more.
        "debug" => build.args(["--workspace", "--example", "manual"]),
        _ => build.args(["--package", "gcra-spoa", "--profile", profile]),
    };
    assert!(build.status().expect("Cargo").success(), "the program can't be built");
}
