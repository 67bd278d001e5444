//! The configuration file: policies are read from it as a whole, and all its mistakes are reported
//! together, each with its line.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::Arc;

use gcra_text::config_note::ConfigNote;
use gcra_text::sentence::Sentence;
use toml::de::DeTable;

use crate::answers::Answers;
use crate::calendar;
use crate::client_names::NameSalt;
use crate::client_names::known::KnownClients;
use crate::file::entries::Entries;
use crate::file::policy::{ForAll, policy};
use crate::file::precedence::PlacedPolicies;
use crate::file::reader::{MAX_REPORTED, Node, Reader};
use crate::file::secrets::Readers;
use crate::file::settings::{FILE_TABLE, POLICY_TABLE, flag, of_file as of};
use crate::file::sources::{MAX_TOML_BYTES, Sources, read_text};
use crate::file::{answers, key, sources, store, syntax};
use crate::limit::Limit;
use crate::policies::Policies;
use crate::policy::Policy;
use crate::policy_text::{FileOrigin, PolicyText};
use crate::store::StoreSettings;
use crate::watch::{SeenFile, see};

/// Reads the policies in a file. The error has each mistake: `FILE:LINE: what is wrong;
/// what would be right`.
///
/// This blocks for as long as the file system takes. A path that is not a regular file is refused
/// before anything is read from it.
///
/// Who reads the sentences decides how much of the file they repeat.
pub fn read(path: &Path, readers: Readers) -> Result<Policies, Vec<ConfigNote>> {
    let mut looked_at = Vec::new();
    read_noting(path, readers, &mut looked_at)
}

/// As [`read`]. Adds the files that were looked at to `looked_at`, each in its state before it was
/// read: also those that are missing, cannot be read, or have mistakes.
pub fn read_noting(
    path: &Path,
    readers: Readers,
    looked_at: &mut Vec<SeenFile>,
) -> Result<Policies, Vec<ConfigNote>> {
    looked_at.push((path.to_owned(), see(path)));
    calendar::look_again();
    let text = read_text(path, MAX_TOML_BYTES).map_err(|error| vec![cannot_read(path, &error)])?;
    parse_for(readers, None, (folder_of(path), path), &text, looked_at)
}

/// The text of a file, for [`parse_in`]. The error is a sentence without the name of the file.
pub fn read_text_of(path: &Path) -> Result<String, Sentence> {
    read_text(path, MAX_TOML_BYTES)
}

/// The same of text that is not at a path.
pub fn read_text_from(input: impl io::Read) -> Result<String, Sentence> {
    sources::read_text_of(input, 0, MAX_TOML_BYTES)
}

/// The mistake that a file cannot be read.
pub fn cannot_read(path: &Path, error: &Sentence) -> ConfigNote {
    let mut note = ConfigNote::from(format!("cannot read {}: {error}", path.display()));
    note.file = Some(path.to_owned());
    note
}

/// The folder of a file, in which the files are that it names.
fn folder_of(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new(""))
}

/// The policies of texts that were read before. Of the files, only that of the salt is read.
pub(crate) fn read_again(
    file: &FileOrigin,
    readers: Readers,
) -> Result<Policies, Vec<ConfigNote>> {
    let path = file.path();
    parse_for(readers, Some(file), (folder_of(path), path), file.text(), &mut Vec::new())
}

/// As [`read`], with the contents of `path`. Lists are looked for beside it.
pub fn parse(path: &Path, text: &str) -> Result<Policies, Vec<ConfigNote>> {
    parse_in(folder_of(path), path, text)
}

/// As [`parse`]. Files that it names by relative paths are looked for in `folder`.
pub fn parse_in(folder: &Path, path: &Path, text: &str) -> Result<Policies, Vec<ConfigNote>> {
    calendar::look_again();
    parse_for(Readers::OfFile, None, (folder, path), text, &mut Vec::new())
}

fn parse_for(
    readers: Readers,
    again: Option<&FileOrigin>,
    (folder, path): (&Path, &Path),
    text: &str,
    looked_at: &mut Vec<SeenFile>,
) -> Result<Policies, Vec<ConfigNote>> {
    let mut reader = Reader::new(path, text, readers);
    if let Some((what, at)) = syntax::not_toml(text) {
        reader.at(at).wrong(&what);
        return Err(reader.finish(None).err().unwrap_or_default());
    }
    let (document, mut errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        let mut reported = BTreeSet::new();
        let mut are_understood = true;
        // The first sentence about a line is the one that is kept, and this one says least.
        errors.sort_by_key(|error| error.message().starts_with("key with no value"));
        for error in errors {
            let span = error.span().unwrap_or(0..0);
            let (line, at) = (reader.line(span.start), span.start);
            let looks_back = reported.len() < MAX_REPORTED;
            let what = syntax::in_words(text, error.message(), span, looks_back);
            let Some(mistake) = what else { continue };
            are_understood &= mistake.is_understood;
            // The rest of the line may be right once its first mistake is mended.
            if reported.insert(line) || mistake.is_understood {
                reader.hide_value_at(at);
                reader.at(at).wrong(&mistake.sentence);
            }
        }
        if !are_understood {
            return Err(reader.finish(None).err().unwrap_or_default());
        }
        // Other mistakes are reported, too, except in the same lines.
        reader.leave_out(reported);
    }
    let mut file = File { reader, sources: Sources::new(folder, path, text, again) };
    let (list, answers, store) = file.document(document.get_ref());
    let known = file.known(document.get_ref());
    let warning_count = file.reader.warning_count();
    let (files, origin, digest) = file.sources.finish();
    looked_at.extend(files);
    let warnings = file.reader.finish(Some(document.get_ref()))?;
    // The rules of time zones are read from files, too.
    let zones = list.iter().flat_map(Policy::limits).filter_map(Limit::calendar);
    let digest = zones.fold(digest, |digest, zone| digest.rotate_left(1) ^ zone.rules());
    let policies = Policies::new(list, answers, looked_at.clone(), digest);
    let origin = Some(Arc::new(PolicyText::File(origin)));
    let known = known.unwrap_or_default().into();
    Ok(Policies { store, known, origin, warnings, warning_count, ..policies })
}

/// The most lines of the names file that are left out of which each gets a warning.
const MOST_LEFT_OUT: usize = 10;

/// A file while it is read.
struct File<'t> {
    reader: Reader<'t>,
    sources: Sources,
}

impl<'t> File<'t> {
    fn document(&mut self, table: &DeTable<'t>) -> (Vec<Policy>, Answers, Option<StoreSettings>) {
        let entries = Entries::new("the file", &FILE_TABLE, table);
        let mut answers = answers::written(&mut self.reader, &entries);
        let store = entries.get(&of::STORE);
        let for_all = ForAll {
            has_store: store.is_some(),
            nat64: key::nat64(&mut self.reader, &entries),
            name_salt: self.name_salt(&entries),
        };
        let store = store.map(|value| {
            (value.span().start, store::store(&mut self.reader, &mut self.sources, value))
        });
        entries.no_others(&mut self.reader, misplaced);
        let policies = self.policies(entries.get(&of::POLICY), &for_all);
        answers::complete(&mut self.reader, &entries, &mut answers, &policies);
        if let Some((at, store)) = &store {
            store_is_used(&mut self.reader, *at, store.as_ref(), &policies.list);
        }
        (policies.list, answers, store.and_then(|(_, store)| store))
    }

    fn name_salt(&mut self, entries: &Entries<'_, 't>) -> Option<NameSalt> {
        let salt = store::salt(&mut self.reader, &mut self.sources, entries, &of::SALT_FILE);
        salt.as_deref().map(NameSalt::new)
    }

    /// What clients are known as. Its mistakes are warnings, because no limit depends on it.
    fn known(&mut self, table: &DeTable<'t>) -> Option<KnownClients> {
        let entries = Entries::new("the file", &FILE_TABLE, table);
        let (at, file) =
            (entries.at(&of::NAMES_FILE)?, entries.read(&mut self.reader, &of::NAMES_FILE)?);
        let path = self.sources.path(&file);
        let shown = path.display();
        if !self.sources.look_at(&path) {
            return Some(KnownClients::later(path));
        }
        match KnownClients::read(&path) {
            Ok((known, left_out)) => {
                let (told, more) = left_out.split_at(left_out.len().min(MOST_LEFT_OUT));
                for (line, why) in told {
                    let what = format!("{shown}:{line} {why}; it is left out");
                    self.reader.at(at).in_file(&path, *line).warn(what);
                }
                if let [(line, _), ..] = more {
                    let what = format!("{shown} has more such lines, from line {line} on");
                    self.reader.at(at).warn_of_several(&what, more.len());
                }
                if known.has_digits() && entries.get(&of::SALT_FILE).is_none() {
                    self.reader.at(at).warn(format!(
                        "{shown} has names with digits behind a #, which are others on each \
                         machine and after a reboot; write salt_file, too"
                    ));
                }
                Some(known)
            }
            Err(why) => {
                self.reader.hide_unless_there(&file, &path);
                self.reader.at(at).warn(format!("cannot read the names file {shown}: {why}"));
                None
            }
        }
    }

    /// The policies with their trials.
    fn policies(&mut self, value: Option<&Node<'t>>, for_all: &ForAll) -> PlacedPolicies {
        let table = value.and_then(|value| {
            let what = "policy must be a table of policies; write a header such as [policy.api] \
                        for each";
            self.reader.table(value, what)
        });
        if value.is_none() || table.is_some_and(DeTable::is_empty) {
            let what = "there is no policy; write one, such as [policy.api] with limits = \
                        [\"100/s burst 20\"]";
            self.reader.at(value.map_or(0, |value| value.span().start)).wrong(what);
        }
        // In the order of the file, which a table does not keep.
        let mut entries: Vec<_> = table.into_iter().flatten().collect();
        entries.sort_by_key(|(name, _)| name.span().start);
        let (mut policies, mut trials) = (PlacedPolicies::default(), Vec::new());
        for (name, value) in entries {
            let read = policy(&mut self.reader, &mut self.sources, for_all, name, value);
            debug_assert!(read.is_some() || !self.reader.is_content(), "it is lost silently");
            let Some((policy, trial)) = read else { continue };
            trials.extend(trial.map(|limits| (policies.list.len(), limits)));
            policies.add(policy, name.span().start);
        }
        policies.none_hides_another(&mut self.reader);
        policies.none_settles_for_another(&mut self.reader);
        for (place, limits) in trials {
            let (trial, at) = (policies.list[place].trial(limits), policies.places[place]);
            policies.list[place].trial = Some(policies.list.len());
            policies.add(trial, at);
        }
        policies
    }
}

/// The advice for an entry that is no setting of the file, if there is some.
fn misplaced(name: &str, value: &Node<'_>) -> Option<String> {
    let is_nearly = |meant| strsim::damerau_levenshtein(meant, &name.to_ascii_lowercase()) <= 1;
    match name {
        _ if is_nearly("policy") || is_nearly("policies") => None,
        _ if POLICY_TABLE.has(name) => Some(format!(
            "'{name}' belongs to a policy; write it below a header such as [policy.api]"
        )),
        "rate" | "burst" => Some(format!(
            "'{name}' belongs to a limit; write [policy.api], and below it limits = \"10/s burst \
             20\""
        )),
        _ if value.get_ref().is_table() => Some(format!(
            "'{name}' is not a setting of the file; for a policy write [policy.{name}]"
        )),
        _ => flag(name),
    }
}

/// Warns of a store that no policy uses, and of one that is strict where that does harm.
fn store_is_used(
    reader: &mut Reader<'_>,
    at: usize,
    store: Option<&StoreSettings>,
    list: &[Policy],
) {
    let mut shared = list.iter().filter(|policy| policy.shared.is_some()).peekable();
    if shared.peek().is_none() {
        let what = "no policy uses the store, which passes on orders only; write shared = true \
                    in those that are to count over all machines";
        reader.at(at).warn(what);
    }
    let counts = |policy: &&Policy| policy.limits().any(|limit| limit.calendar().is_some());
    if store.is_some_and(|store| store.base.strict)
        && let Some(policy) = shared.find(counts)
    {
        reader.at(at).warn(format!(
            "the store is strict, and policy '{}' counts in windows: when the store is used for \
             the first time, and when it has lost its memory, all clients are blocked until the \
             window ends; leave strict out if it does less harm that counts begin at 0 again then",
            policy.name
        ));
    }
}
