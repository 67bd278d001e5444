//! Product code as this test needs it: files, modules, and the names that one takes from another.
//!
//! A file imports another if it names something that is defined there, directly or through
//! re-exports. Methods that another file implements are not seen.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};

/// The product code of a crate.
pub(crate) struct Krate {
    pub(crate) name: String,
    /// The root's file comes first.
    pub(crate) files: Vec<File>,
    pub(crate) modules: BTreeMap<ModulePath, Module>,
}

/// The names of the modules from the crate's root, which has none.
pub(crate) type ModulePath = Vec<String>;

pub(crate) struct File {
    pub(crate) path: PathBuf,
    /// How many lines it has without its tests.
    pub(crate) lines: usize,
}

#[derive(Default)]
pub(crate) struct Module {
    /// The number of the file that it stands in.
    pub(crate) file: usize,
    /// All names that are defined in it.
    names: BTreeSet<String>,
    /// Those of types that other files can use, and whether other crates can.
    pub(crate) types: BTreeMap<String, bool>,
    /// The names that its `use` declarations bind, `*` for all names of a path.
    imports: Vec<(String, Vec<String>)>,
    /// Those that are public.
    pub(crate) passed_on: Vec<(String, Vec<String>)>,
    /// The other paths of its code.
    paths: Vec<Vec<String>>,
}

/// The target of a path.
enum Found {
    Module(ModulePath),
    /// A name that is defined in the file with this number.
    Name(usize, String),
}

/// The names that one file takes from another.
type Arrows = BTreeMap<(usize, usize), BTreeSet<String>>;

impl Krate {
    /// Reads the root's file, `crates/NAME/lib.rs` or `crates/NAME/src/lib.rs`, and the others.
    pub(crate) fn read(start: &Path, read: &dyn Fn(&Path) -> Option<String>) -> Self {
        let name = start.iter().nth(1).unwrap_or_default().display().to_string();
        let mut krate = Self { name, files: Vec::new(), modules: BTreeMap::new() };
        let mut open = vec![(start.to_owned(), ModulePath::new())];
        while let Some((path, module)) = open.pop() {
            let text = read(&path).unwrap_or_else(|| panic!("{} is missing", path.display()));
            let (code, lines) = product(&text);
            let file = krate.files.len();
            krate.files.push(File { path: path.clone(), lines });
            for child in krate.scan(file, &module, &tokens(&code)) {
                let (folder, stem) = (path.with_file_name(""), path.with_extension(""));
                let is_root = module.is_empty() || path.ends_with("mod.rs");
                let inside = if is_root { folder } else { stem };
                let name = child.last().expect("a module has a name");
                let own = inside.join(format!("{name}.rs"));
                let own =
                    if read(&own).is_some() { own } else { inside.join(name).join("mod.rs") };
                open.push((own, child));
            }
        }
        krate
    }

    pub(crate) fn lines(&self) -> usize {
        self.files.iter().map(|file| file.lines).sum()
    }

    /// Takes in a file, and returns the modules that have files of their own.
    fn scan(&mut self, file: usize, module: &[String], tokens: &[&str]) -> Vec<ModulePath> {
        let mut children = Vec::new();
        // The module at each open brace; `None` inside of functions, types and implementations.
        let mut scopes = vec![Some(module.to_vec())];
        self.modules.insert(module.to_vec(), Module { file, ..Module::default() });
        let mut at = 0;
        while let Some(&token) = tokens.get(at) {
            let next = |ahead: usize| tokens.get(at + ahead).copied().unwrap_or_default();
            let before = if at == 0 { "" } else { tokens[at - 1] };
            let inner = scopes.iter().rev().flatten().next().expect("the file's own").clone();
            let is_item = matches!(scopes.last(), Some(Some(_)));
            let here = self.modules.get_mut(&inner).expect("inserted where it begins");
            match token {
                // The arguments of a macro, its arms and their bodies stand in the same module.
                "{" if is_item && is_of_macro(&tokens[..at]) => {
                    // A name alone, as in `part! { Status of ... }`, is that of a type.
                    let name = after_attributes(&tokens[at + 1..]).first().copied();
                    if let Some(name) = name.filter(|name| before == "!" && is_type_name(name)) {
                        here.names.insert(name.to_owned());
                        here.types.insert(name.to_owned(), true);
                    }
                    scopes.push(Some(inner));
                }
                "{" => scopes.push(None),
                "}" => drop(scopes.pop()),
                "use" if next(1) != "<" => {
                    let end = tokens[at..].iter().position(|&token| token == ";").unwrap_or(1);
                    let bound = imports(&tokens[at + 1..at + end]);
                    if before == "pub" {
                        here.passed_on.extend(bound.clone());
                    }
                    here.imports.extend(bound);
                    at += end;
                }
                "mod" if is_item && is_name(next(1)) => {
                    let child = [&inner[..], &[next(1).to_owned()]].concat();
                    if next(2) == "{" {
                        self.modules.insert(child.clone(), Module { file, ..Module::default() });
                        scopes.push(Some(child));
                        at += 2;
                    } else {
                        children.push(child);
                    }
                }
                "struct" | "enum" | "trait" | "type" | "union" | "fn" | "const" | "static"
                    if is_item && is_name(next(1)) =>
                {
                    here.names.insert(next(1).to_owned());
                    let is_type = matches!(token, "struct" | "enum" | "trait" | "type" | "union");
                    if is_type && matches!(before, "pub" | ")") {
                        here.types.insert(next(1).to_owned(), before == "pub");
                    }
                }
                "macro_rules" => drop(here.names.insert(next(2).to_owned())),
                // The rest of a path, the name of a field or method, and `pub(in path)`.
                _ if matches!(before, "::" | ".")
                    || before == "in" && at > 1 && tokens[at - 2] == "(" => {}
                _ if is_name(token) && next(1) == "::" => {
                    let mut path = vec![token.to_owned()];
                    while tokens.get(at + 1) == Some(&"::")
                        && let Some(name) = tokens.get(at + 2).filter(|name| is_name(name))
                    {
                        path.push((*name).to_owned());
                        at += 2;
                    }
                    here.paths.push(path);
                }
                _ => {}
            }
            at += 1;
        }
        children
    }

    /// The target of a path in a module; `None` if that is not in this crate. `left` bounds how
    /// many re-exports are followed, because an import may bear the name that it begins with.
    fn resolve(&self, from: &[String], path: &[String], left: usize) -> Option<Found> {
        let mut here = from.to_vec();
        let mut is_anchored = false;
        for segment in path {
            match segment.as_str() {
                "crate" => here.clear(),
                "self" => {}
                "super" => drop(here.pop()),
                name => match self.find(&here, name, left) {
                    Some(Found::Module(module)) => here = module,
                    Some(found) => return Some(found),
                    // Defined by a macro.
                    None if is_anchored => {
                        return Some(Found::Name(self.modules[&here].file, name.to_owned()));
                    }
                    None => return None,
                },
            }
            is_anchored = true;
        }
        Some(Found::Module(here))
    }

    /// The target of a name in a module.
    fn find(&self, here: &[String], name: &str, left: usize) -> Option<Found> {
        let child = [here, &[name.to_owned()]].concat();
        if self.modules.contains_key(&child) {
            return Some(Found::Module(child));
        }
        let module = self.modules.get(here)?;
        if module.names.contains(name) {
            return Some(Found::Name(module.file, name.to_owned()));
        }
        let left = left.checked_sub(1)?;
        let named = module.imports.iter().filter(|(bound, _)| bound == name);
        let found = named.filter_map(|(_, path)| self.resolve(here, path, left)).next();
        found.or_else(|| {
            let globs = module.imports.iter().filter(|(bound, _)| bound == "*");
            let within = globs.filter_map(|(_, path)| match self.resolve(here, path, left)? {
                Found::Module(module) if module != here => self.find(&module, name, left),
                _ => None,
            });
            within.into_iter().next()
        })
    }

    fn arrows(&self) -> Arrows {
        let mut arrows = Arrows::new();
        for (here, module) in &self.modules {
            let imports = module.imports.iter().map(|(_, path)| path);
            for path in imports.chain(&module.paths) {
                // An imported module is no arrow; what is taken from it by a path is one.
                if let Some(Found::Name(file, name)) = self.resolve(here, path, 8)
                    && file != module.file
                {
                    arrows.entry((module.file, file)).or_default().insert(name);
                }
            }
        }
        arrows
    }

    /// The shortest circle through each file that is in one, each circle once.
    pub(crate) fn circles(&self) -> Vec<String> {
        let arrows = self.arrows();
        let mut seen = BTreeSet::new();
        let mut sentences = Vec::new();
        for start in 0..self.files.len() {
            let mut came_from = BTreeMap::new();
            let mut open = VecDeque::from([start]);
            while let Some(from) = open.pop_front() {
                for (_, to) in arrows.keys().filter(|(file, _)| *file == from) {
                    came_from.entry(*to).or_insert_with(|| {
                        open.push_back(*to);
                        from
                    });
                }
            }
            let back = |to: &usize| came_from.get(to).copied().filter(|from| *from != start);
            let Some(&last) = came_from.get(&start) else { continue };
            let mut circle: Vec<_> = std::iter::successors(Some(last), back).collect();
            if last != start {
                circle.push(start);
            }
            circle.reverse();
            if seen.insert(circle.iter().copied().collect::<BTreeSet<_>>()) {
                let path = |file: usize| self.files[file].path.display();
                let ends = circle.iter().copied().zip(circle.iter().copied().cycle().skip(1));
                let steps = ends.map(|(from, to)| {
                    let names: Vec<_> = arrows[&(from, to)].iter().cloned().collect();
                    format!("{} takes {} from {}", path(from), names.join(", "), path(to))
                });
                sentences.push(format!(
                    "a circle: {}; move one of these names to a file below both",
                    steps.collect::<Vec<_>>().join(", ")
                ));
            }
        }
        sentences
    }
}

/// The names that a `use` declaration binds, each with its path.
fn imports(tokens: &[&str]) -> Vec<(String, Vec<String>)> {
    let (mut found, mut outer) = (Vec::new(), Vec::<Vec<String>>::new());
    let (mut path, mut bound, mut before) = (Vec::new(), None, "");
    for &token in tokens.iter().chain(&[","]) {
        match token {
            "::" | "$" | "as" => {}
            "{" => {
                outer.push(path.clone());
                bound = None;
            }
            "," | "}" => {
                found.extend(bound.take().map(|name: String| (name, path)));
                outer.truncate(outer.len() - usize::from(token == "}"));
                path = outer.last().cloned().unwrap_or_default();
            }
            "self" if !path.is_empty() => bound = path.last().cloned(),
            name => {
                bound = Some(name.to_owned());
                if before != "as" {
                    path.push(name.to_owned());
                }
            }
        }
        before = token;
    }
    for (name, path) in &mut found {
        if name == "*" {
            path.pop();
        }
    }
    found
}

/// Whether a brace after these tokens is one of a macro, and not of an item.
fn is_of_macro(before: &[&str]) -> bool {
    matches!(before, [.., "!"] | [.., "=", ">"] | [.., "macro_rules", "!", _])
}

/// The tokens after `#[...]`.
fn after_attributes<'a, 't>(tokens: &'a [&'t str]) -> &'a [&'t str] {
    let ["#", "[", ..] = tokens else { return tokens };
    let mut depth = 0_u32;
    let end = tokens.iter().position(|token| {
        depth = depth + u32::from(*token == "[") - u32::from(*token == "]");
        *token == "]" && depth == 0
    });
    end.map_or(&[], |end| after_attributes(&tokens[end + 1..]))
}

/// Code without comments, literals and what is only for tests, and how many lines are not for
/// tests.
fn product(text: &str) -> (String, usize) {
    let (mut code, mut lines) = (bare(text), text.lines().count());
    let mut from = 0;
    while let Some(start) = code[from..].find("#[cfg(").map(|at| from + at) {
        from = item_end(&code, start + 1);
        let condition = tokens(&code[start..from]);
        if condition.contains(&"test") && !condition.contains(&"not") {
            let end = item_end(&code, from);
            lines -= code[start..end].lines().count();
            code.replace_range(start..end, "");
            from = start;
        }
    }
    (code, lines)
}

/// Where an attribute ends, or else an item with its own attributes.
fn item_end(code: &str, from: usize) -> usize {
    let mut depth = 0_u32;
    let is_attribute = code[from..].starts_with('[');
    for (at, byte) in code[from..].bytes().enumerate().map(|(at, byte)| (from + at, byte)) {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' if depth == 0 => return at,
            b')' | b']' | b'}' => {
                depth -= 1;
                if depth == 0 && (byte == b'}' || is_attribute) {
                    return at + 1;
                }
            }
            b';' | b',' if depth == 0 => return at + 1,
            _ => {}
        }
    }
    code.len()
}

/// The code with blanks for comments and literals.
fn bare(text: &str) -> String {
    let mut bytes = text.as_bytes().to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let length = literal(&text.as_bytes()[at..]);
        let in_word = at > 0 && (bytes[at - 1].is_ascii_alphanumeric() || bytes[at - 1] == b'_');
        if length == 0 || in_word && bytes[at].is_ascii_alphabetic() {
            at += 1;
            continue;
        }
        for byte in &mut bytes[at..at + length] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        at += length;
    }
    String::from_utf8(bytes).expect("only whole literals were replaced")
}

/// How long the comment or literal is that this begins with, or 0.
fn literal(text: &[u8]) -> usize {
    let until = |from: usize, end: &[u8]| {
        let rest = text[from..].windows(end.len());
        rest.enumerate().find(|(_, part)| *part == end).map_or(text.len(), |(at, _)| from + at)
    };
    let quoted = |quote: u8| {
        let mut at = 1;
        while at < text.len() && text[at] != quote {
            at += 1 + usize::from(text[at] == b'\\');
        }
        (at + 1).min(text.len())
    };
    let raw = text.strip_prefix(b"b").unwrap_or(text).strip_prefix(b"r");
    let hashes = raw.map_or(0, |raw| raw.iter().take_while(|&&byte| byte == b'#').count());
    match text {
        [b'/', b'/', ..] => until(0, b"\n"),
        [b'/', b'*', ..] => (until(2, b"*/") + 2).min(text.len()),
        [b'"', ..] => quoted(b'"'),
        [b'\'', b'\\', ..] => quoted(b'\''),
        // A character, not a lifetime.
        [b'\'', first, ..] => {
            let length = 1 + usize::from(*first >= 0xc0) + usize::from(*first >= 0xe0);
            let end = 1 + length + usize::from(*first >= 0xf0);
            if text.get(end) == Some(&b'\'') { end + 1 } else { 0 }
        }
        _ if raw.is_some_and(|raw| raw.get(hashes) == Some(&b'"')) => {
            let end = [b"\"", "#".repeat(hashes).as_bytes()].concat();
            let start = text.iter().position(|&byte| byte == b'"').unwrap_or(0) + 1;
            (until(start, &end) + end.len()).min(text.len())
        }
        _ => 0,
    }
}

/// Words, `::`, and all other characters one by one.
fn tokens(code: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = code.trim_start();
    while let Some(first) = rest.chars().next() {
        let word = rest.find(|c: char| c != '_' && !c.is_alphanumeric()).unwrap_or(rest.len());
        let other = if rest.starts_with("::") { 2 } else { first.len_utf8() };
        let (token, after) = rest.split_at(if word > 0 { word } else { other });
        tokens.push(token);
        rest = after.trim_start();
    }
    tokens
}

/// Whether this is written as names of types are: `HostTime`, and not `INVALID` or `asks`.
fn is_type_name(token: &str) -> bool {
    token.starts_with(char::is_uppercase) && token.contains(char::is_lowercase)
}

fn is_name(token: &str) -> bool {
    token.starts_with(|first: char| first == '_' || first.is_alphabetic())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A crate of these files, of which the first is the root's.
    fn crate_of(files: &[(&str, &str)]) -> Krate {
        let read = |path: &Path| {
            let found = files.iter().find(|(name, _)| Path::new(name) == path);
            found.map(|(_, text)| (*text).to_owned())
        };
        Krate::read(Path::new(files[0].0), &read)
    }

    #[test]
    fn the_scanner_finds_a_circle() {
        let circle = crate_of(&[
            ("lib.rs", "mod a; mod b; mod c; pub use c::Third;"),
            ("a.rs", "use crate::b::Second; pub struct First;"),
            ("b.rs", "use crate::Third; pub struct Second;"),
            ("c.rs", "pub struct Third; fn third() { crate::a::First::new() }"),
        ]);
        let found = circle.circles();
        let steps =
            ["a.rs takes Second from b.rs", "b.rs takes Third from c.rs", "c.rs takes First"];
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(steps.iter().all(|step| found[0].contains(step)), "{found:?}");
    }

    #[test]
    fn types_of_macros_are_found() {
        let text = "
            macro_rules! counters {
                ($($name:ident),*) => {
                    pub struct Counters { $($name: u64),* }
                    fn first() { match 1 { _ => { pub struct Hidden; } } }
                };
            }
            counters! { one, two }
            words! { #[derive(Debug)] pub(crate) enum Unit { Hour } }
            part! { #[about([\"its\"])] #[more] Status of it: &Agent; }
            statuses! { INVALID = 4 }
        ";
        let types = crate_of(&[("lib.rs", text)]).modules[&ModulePath::new()].types.clone();
        let expected = [("Counters", true), ("Status", true), ("Unit", false)];
        assert_eq!(types, expected.map(|(name, public)| (name.to_owned(), public)).into());
    }

    #[test]
    fn literals_comments_and_tests_are_no_code() {
        let text = r##"
            // use crate::a;
            /* use crate::b; */ const C: &str = "use crate::c;\" use crate::d;";
            fn f<'a>(x: &'a str) -> [char; 2] { ['"', '\''] }
            const R: &[u8] = br#"use crate::e; ""#; use crate::kept;
            #[cfg(test)]
            #[allow(dead_code)]
            mod tests { use crate::f; fn g() { if true {} } }
            #[cfg(not(test))] use crate::also;
        "##;
        let (code, lines) = product(text);
        let all = tokens(&code);
        let names: Vec<_> =
            all.windows(2).filter(|two| two[0] == "::").map(|two| two[1]).collect();
        assert_eq!((names, lines), (vec!["kept", "also"], 7));
    }

    #[test]
    fn a_parent_that_passes_names_on_is_in_no_circle() {
        let passing =
            "mod child; mod other; pub use child::Child; pub(crate) use self::other::{Other};";
        let child = "use super::Other; pub struct Child(Other);";
        let other = ("p/other.rs", "pub struct Other;");
        let files = [("lib.rs", "mod p;"), ("p/mod.rs", passing), ("p/child.rs", child), other];
        assert_eq!(crate_of(&files).circles(), [""; 0]);
        let using = format!("{passing} pub struct Defined(Child);");
        let child = "use super::{Defined}; pub struct Child;";
        let files = [("lib.rs", "mod p;"), ("p/mod.rs", &using), ("p/child.rs", child), other];
        assert_eq!(crate_of(&files).circles().len(), 1);
    }
}
