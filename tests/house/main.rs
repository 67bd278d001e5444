//! The house keeps itself: who imports whom, how large each part is, and what each is called, read
//! from the sources. Only product code counts: what stands under `#[cfg(test)]` is left out.
#![allow(clippy::panic, clippy::expect_used, reason = "tests")]

mod sources;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;

use serde_json::Value;

use sources::{File, Krate};

/// A crate, and what it must not use, also for tests, beside crates of its own floor and above.
type Room = (&'static str, &'static [&'static str]);

/// All crates, the top floor first.
const FLOORS: [&[Room]; 9] = [
    &[("gcra-spoa", &[])],
    &[("gcra-lua", &["crossterm", "hyper", "tokio"])],
    &[("gcra-admin", &["haproxy-log"]), ("gcra-replay", &["gcra-store", "hyper", "tokio"])],
    &[("gcra-inspect", &["crossterm", "haproxy-log", "hyper"])],
    &[("gcra-limiter", &["clap", "crossterm", "haproxy-log", "hyper", "toml"])],
    &[("gcra-policy", &["haproxy-log", "hyper", "log", "tokio"])],
    &[("gcra-text", &["clap", "gcra-store", "log", "spop-agent", "spop-codec", "tokio"])],
    &[
        ("gcra-store", &["clap", "spop-codec"]),
        ("gcra-table", &["clap", "log", "serde", "tokio"]),
        ("spop-agent", &["clap", "gcra-lease"]),
    ],
    &[
        ("gcra-lease", &["log", "rustix", "tokio"]),
        ("haproxy-log", &["clap", "serde_json", "tokio"]),
        ("spop-codec", &["log", "tokio"]),
    ],
];

/// A crate, and what it must not even be built with, because another one uses it.
const BUILT_WITHOUT: &[Room] = &[
    ("gcra-policy", &["hyper", "redis", "rustls", "tokio"]),
    ("gcra-replay", &["hyper"]),
    ("gcra-table", &["tokio"]),
    ("gcra-text", &["redis", "tokio"]),
];

/// The lines of all crates, without tests, when this was last set: with each release, or in a
/// commit that says what more lines are for, and what else could not go for them. See ADR 50.
const LINES_IN_ALL: usize = 75_900;

/// How many more there may be until it is set again: 1 %, so that a small change needs none.
const MOST_LINES_IN_ALL: usize = LINES_IN_ALL + LINES_IN_ALL / 100;

/// The most lines of a file, without its tests: of Rust, of a page or of a script.
const MOST_LINES: usize = 900;

/// The most files in one folder.
const MOST_FILES: usize = 30;

/// The files with unsafe code. CONTRIBUTING.md names them, too.
const UNSAFE: [&str; 3] = [
    "crates/gcra-lua/src/lua.rs",
    "crates/gcra-table/src/cpu.rs",
    "crates/gcra-table/src/file/region.rs",
];

/// Names of several types that mean one thing, and which.
const SAME_IDEA: &[(&str, &str)] = &[
    (
        "Answer",
        "the variables that HAProxy gets for a NOTIFY: as an agent copies or a test reads them",
    ),
    (
        "Question",
        "a message that a decision is asked for: as a test writes or the limiter reads it",
    ),
    ("Window", "a calendar window, by the clock of the table or by that of the store"),
    ("Word", "128 bits that are exchanged as a whole: a slot, or a part of a lease"),
];

#[test]
fn modules_do_not_import_each_other_in_circles() {
    complain(crates().iter().flat_map(Krate::circles));
}

#[test]
fn crates_use_only_what_stands_below_them() {
    let mut wrong = Vec::new();
    for Krate { name, .. } in crates() {
        let (mine, never) = room(&name).expect("it is in FLOORS");
        // Tests may compare with what stands above.
        let in_product =
            DEPENDENCIES[&name].iter().filter(|(_, what_for)| **what_for == Use::Product);
        for (used, _) in in_product {
            if never.contains(&used.as_str()) {
                wrong.push(format!(
                    "{name} must not use {used}: the code that needs it belongs elsewhere"
                ));
            } else if room(used).is_some_and(|(floor, _)| floor <= mine) {
                wrong.push(format!(
                    "{name} uses {used}, which does not stand below it: move what both need down"
                ));
            }
        }
    }
    for folder in fs::read_dir(root().join("crates")).expect("the folder of crates") {
        let name = folder.expect("a crate").file_name().display().to_string();
        if room(&name).is_none() {
            wrong.push(format!("crates/{name} has no floor: add it to FLOORS of tests/house"));
        }
    }
    for (name, never) in BUILT_WITHOUT {
        // A line for each crate: "tokio v1.54.1".
        let built = cargo(&["tree", "--package", name, "--edges", "no-dev", "--prefix", "none"]);
        let built: BTreeSet<_> = built.lines().filter_map(|line| line.split(' ').next()).collect();
        for used in never.iter().filter(|used| built.contains(**used)) {
            wrong.push(format!(
                "{name} must not be built with {used}: 'cargo tree -p {name} -i {used}' says for \
                 which crate it is"
            ));
        }
    }
    complain(wrong);
}

/// Drawn is each arrow that no way over other crates makes needless.
#[test]
fn the_drawing_of_the_crates_is_true() {
    let mut drawn = BTreeSet::new();
    let page = fs::read_to_string(root().join("docs/internals/ARCHITECTURE.md")).expect("a page");
    let drawing = page.split("**Libraries**").next().unwrap_or_default();
    // The crates that lead to a line, each with its column.
    let mut above = Vec::new();
    for line in drawing.lines().filter(|line| line.starts_with("    gcra-") || line.contains('▶'))
    {
        let (before, rest) = line.split_once("▶ ").unwrap_or(line.split_at(4));
        let name = rest.split(' ').next().expect("a line has a word").to_owned();
        let column = before.chars().count();
        above.retain(|(other, _)| *other < column);
        drawn.extend(above.last().map(|(_, user): &(_, String)| (user.clone(), name.clone())));
        above.push((column, name));
    }
    let uses = |name: &str| -> BTreeSet<_> {
        let used = DEPENDENCIES[name].iter().filter(|(_, what_for)| **what_for == Use::Product);
        used.map(|(used, _)| used.clone()).filter(|used| room(used).is_some()).collect()
    };
    let mut wrong = Vec::new();
    for (user, _) in FLOORS.iter().copied().flatten() {
        // This ends: crates have no circles.
        let (direct, mut open) = (uses(user), Vec::from_iter(uses(user)));
        let mut needless = BTreeSet::new();
        while let Some(name) = open.pop() {
            needless.extend(uses(&name));
            open.extend(uses(&name));
        }
        let missing = direct.difference(&needless).map(|used| ((*user).to_owned(), used.clone()));
        wrong.extend(missing.filter(|arrow| !drawn.remove(arrow)).map(|(user, used)| {
            format!("the drawing in ARCHITECTURE.md has no arrow from {user} to {used}")
        }));
    }
    wrong.extend(drawn.into_iter().map(|(user, used)| {
        format!(
            "the drawing in ARCHITECTURE.md has a wrong arrow from {user} to {used}: remove it"
        )
    }));
    complain(wrong);
}

#[test]
fn nothing_is_too_large() {
    let whole: usize = crates().iter().map(Krate::lines).sum();
    let mut wrong = Vec::new();
    if whole > MOST_LINES_IN_ALL {
        wrong.push(format!(
            "the crates have {whole} product lines, more than {MOST_LINES_IN_ALL}: let something \
             go for the new lines, or raise the bound in a commit that says why nothing can"
        ));
    }
    for krate in crates() {
        if krate.lines() > whole / 4 {
            let (name, lines) = (&krate.name, krate.lines());
            wrong.push(format!(
                "{name} has {lines} of {whole} product lines, more than a quarter: divide it"
            ));
        }
        let mut folders = BTreeMap::new();
        let others = others(krate.files[0].path.parent().expect("a file is in a folder"));
        for file in krate.files.iter().chain(&others) {
            *folders.entry(file.path.parent().expect("a file is in a folder")).or_insert(0) += 1;
            if file.lines > MOST_LINES {
                wrong.push(format!(
                    "{} has {} lines without its tests, more than {MOST_LINES}: give one of its \
                     nouns a file",
                    file.path.display(),
                    file.lines
                ));
            }
        }
        for (folder, files) in folders.into_iter().filter(|(_, files)| *files > MOST_FILES) {
            wrong.push(format!(
                "{} has {files} files, more than {MOST_FILES}: give those of one topic a folder",
                folder.display()
            ));
        }
    }
    complain(wrong);
}

#[test]
fn unsafe_code_is_in_the_files_that_are_named() {
    let contributing = fs::read_to_string(root().join("CONTRIBUTING.md")).expect("a page");
    let mut wrong = Vec::new();
    for krate in crates() {
        for path in krate.files.iter().map(|file| file.path.display().to_string()) {
            let text = fs::read_to_string(root().join(&path)).expect("a source");
            let is_named = UNSAFE.contains(&path.as_str()) && contributing.contains(&path);
            if text.contains("allow(unsafe_code") != is_named {
                wrong.push(format!(
                    "{path}: a file with unsafe code, and no other, is named in UNSAFE of \
                     tests/house and in CONTRIBUTING.md"
                ));
            }
        }
    }
    complain(wrong);
}

/// The folders whose files say at their head by which decision they are as they are.
const DECIDED: [&str; 5] = [
    "crates/gcra-limiter/src/decide",
    "crates/gcra-limiter/src/lease_client",
    "crates/gcra-table/src/bucket",
    "crates/gcra-table/src/leases",
    "crates/gcra-table/src/table",
];

/// Below the documentation of a file: `// ADR 18: A slot is 128 bits and changes whole.`
#[test]
fn a_decision_is_named_by_its_title_where_its_code_is() {
    let titles: BTreeSet<String> = fs::read_dir(root().join("docs/adr"))
        .expect("a folder")
        .map(|page| fs::read_to_string(page.expect("an entry").path()).expect("a page"))
        .filter_map(|page| {
            let (number, title) = page.lines().next()?.strip_prefix("# ")?.split_once(". ")?;
            Some(format!("{number}: {title}"))
        })
        .collect();
    let mut named = BTreeSet::new();
    let mut wrong = Vec::new();
    for krate in crates() {
        for path in krate.files.iter().map(|file| &file.path) {
            let text = fs::read_to_string(root().join(path)).expect("a source");
            let ours: BTreeSet<_> = text
                .lines()
                .filter_map(|line| line.strip_prefix("// ADR ")?.strip_suffix('.'))
                .map(str::to_owned)
                .collect();
            let place = path.display();
            wrong.extend(
                ours.difference(&titles).map(|it| format!("{place}: there is no 'ADR {it}'")),
            );
            let is_model = path.ends_with("model.rs");
            let must = DECIDED.iter().any(|folder| path.starts_with(folder)) && !is_model;
            wrong.extend((must && ours.is_empty()).then(|| format!("{place} names no ADR")));
            named.extend(ours);
        }
    }
    // Those about the house as a whole have no file.
    wrong.extend(
        titles
            .difference(&named)
            .filter(|title| !["45: ", "50: "].iter().any(|it| title.starts_with(it)))
            .map(|title| format!("no source names 'ADR {title}'")),
    );
    complain(wrong);
}

/// A name is read where it can be used: a type of one crate by that crate alone, a public one also
/// by the crates that depend on it, or on one that passes it on. No reader should meet two of one
/// name.
#[test]
fn a_name_means_one_thing_wherever_it_is_read() {
    let crates = crates();
    let readers = |krate: &Krate, is_public| {
        let users = DEPENDENCIES.iter().filter(|(user, used)| {
            **user == krate.name || is_public && used.get(&krate.name) == Some(&Use::Product)
        });
        users.map(|(user, _)| user.as_str()).collect::<BTreeSet<_>>()
    };
    let mut types: BTreeMap<&str, Vec<(&Path, BTreeSet<&str>)>> = BTreeMap::new();
    for krate in &crates {
        for module in krate.modules.values() {
            for (name, is_public) in &module.types {
                let path = krate.files[module.file].path.as_path();
                types.entry(name).or_default().push((path, readers(krate, *is_public)));
            }
            for (name, path) in &module.passed_on {
                let [of, .., passed] = &path[..] else { continue };
                let of = crates.iter().filter(|krate| krate.name.replace('-', "_") == *of);
                let modules =
                    of.flat_map(|of| of.modules.values().map(move |module| (of, module)));
                for (of, module) in modules.filter(|(_, found)| found.types.contains_key(passed)) {
                    let path = of.files[module.file].path.as_path();
                    types.entry(name).or_default().push((path, readers(krate, true)));
                }
            }
        }
    }
    let mut wrong = Vec::new();
    let mut needed = BTreeSet::new();
    for (name, places) in types {
        let meets = |(path, readers): &&(&Path, BTreeSet<&str>)| {
            let mut others = places.iter().filter(|(other, _)| other != path);
            others.any(|(_, others)| !readers.is_disjoint(others))
        };
        let paths: BTreeSet<_> =
            places.iter().filter(meets).map(|(path, _)| path.display().to_string()).collect();
        if paths.is_empty() {
            continue;
        }
        needed.insert(name);
        if SAME_IDEA.iter().all(|(same, _)| *same != name) {
            wrong.push(format!(
                "`{name}` is a type in {}: name each for what it is, or say in SAME_IDEA of \
                 tests/house which idea all are",
                Vec::from_iter(paths).join(" and in ")
            ));
        }
    }
    let needless = SAME_IDEA.iter().filter(|(name, _)| !needed.contains(name));
    wrong.extend(needless.map(|(name, _)| format!("SAME_IDEA need not have `{name}`: remove it")));
    complain(wrong);
}

/// Fails with all that is wrong.
fn complain(sentences: impl IntoIterator<Item = String>) {
    let sentences: Vec<_> = sentences.into_iter().collect();
    assert!(sentences.is_empty(), "\n{}\n", sentences.join("\n"));
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The floor of a crate, and what it must not use.
fn room(name: &str) -> Option<(usize, &'static [&'static str])> {
    let rooms = FLOORS
        .iter()
        .enumerate()
        .flat_map(|(floor, rooms)| rooms.iter().map(move |room| (floor, room)));
    rooms.filter(|(_, room)| room.0 == name).map(|(floor, room)| (floor, room.1)).next()
}

/// The crates that exist. The program's folder has no `src`.
fn crates() -> Vec<Krate> {
    let read = |path: &Path| fs::read_to_string(root().join(path)).ok();
    let names = FLOORS.iter().copied().flatten().map(|(name, _)| Path::new("crates").join(name));
    let roots = names.flat_map(|folder| [folder.join("src/lib.rs"), folder.join("lib.rs")]);
    roots.filter(|path| root().join(path).exists()).map(|path| Krate::read(&path, &read)).collect()
}

/// The files of product code below a folder that are no modules: programs, pages and scripts.
fn others(folder: &Path) -> Vec<File> {
    let mut others = Vec::new();
    for entry in fs::read_dir(root().join(folder)).expect("a folder") {
        let path = folder.join(entry.expect("an entry").file_name());
        let extension = path.extension().and_then(OsStr::to_str).unwrap_or_default();
        if root().join(&path).is_dir() {
            others.extend(self::others(&path));
        } else if ["css", "html", "js", "lua"].contains(&extension) || path.ends_with("main.rs") {
            let text = fs::read_to_string(root().join(&path)).expect("a text");
            others.push(File { path, lines: text.lines().count() });
        }
    }
    others
}

/// For what a crate uses another.
#[derive(Clone, Copy, Eq, Ord, PartialEq, PartialOrd)]
enum Use {
    Tests,
    Product,
}

/// The crates that the manifest of each crate names.
static DEPENDENCIES: LazyLock<BTreeMap<String, BTreeMap<String, Use>>> = LazyLock::new(|| {
    let metadata = cargo(&["metadata", "--no-deps", "--format-version", "1"]);
    let metadata: Value = serde_json::from_str(&metadata).expect("what cargo writes is JSON");
    let list = |of: &Value| of.as_array().expect("a list").clone();
    let name = |of: &Value| of["name"].as_str().expect("a name").to_owned();
    let mut all = BTreeMap::<_, BTreeMap<_, _>>::new();
    for package in list(&metadata["packages"]) {
        let named = all.entry(name(&package)).or_default();
        for used in list(&package["dependencies"]) {
            let is_for_tests = used["kind"] == "dev" || name(&package) == "fuzz";
            let what_for = if is_for_tests { Use::Tests } else { Use::Product };
            let before = named.entry(name(&used)).or_insert(what_for);
            *before = what_for.max(*before);
        }
    }
    all
});

/// The output of a command of Cargo about this workspace.
fn cargo(args: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO"));
    let output = command.args(args).args(["--locked", "--offline"]).current_dir(root()).output();
    let output = output.expect("cargo can be run");
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("names are UTF-8")
}
