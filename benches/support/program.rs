//! The daemon's program, which Cargo builds by itself only for what is in the same package.

use crate::support::{cargo, root};

/// Builds it in the profile that this bench was built in, unless it is there.
pub(crate) fn build() {
    let bench = std::env::current_exe().expect("this program");
    // TARGET/PROFILE/deps/BENCH
    let folder = |above| bench.ancestors().nth(above).expect("a folder of Cargo's");
    let profile = folder(2).file_name().expect("a name").to_str().expect("a name of ours");
    let mut build = cargo();
    build.args(["build", "--locked", "--quiet", "--bin", "gcra-spoa", "--target-dir"]);
    build.arg(folder(3)).current_dir(root());
    match profile {
        // With the features that tests have, so that nothing is built for them once more.
        "debug" => build.args(["--workspace", "--example", "manual"]),
        _ => build.args(["--package", "gcra-spoa", "--profile", profile]),
    };
    assert!(build.status().expect("Cargo").success(), "the program can't be built");
}
