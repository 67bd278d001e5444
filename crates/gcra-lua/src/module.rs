//! The functions that `gcra.lua` calls.

use std::cell::RefCell;
use std::sync::{Mutex, OnceLock, PoisonError};

use gcra_admin::server::{AskedOfAnother, about_itself};
use gcra_limiter::decide::in_process::{AskedRequest, FoundPolicies, WaitInProcess};

use crate::asked_panics::may_panic;
use crate::guarded::guarded;
use crate::log_lines;
use crate::question::{address, args_of, untyped};
use crate::results::{Fields, Item, Results};
use crate::settings::Settings;
use crate::worker::{Running, Worker};

/// The converter's answer where nothing could be decided.
pub(crate) const UNDECIDED: i64 = -1;

/// The converter's answer for a request that is never allowed.
const NEVER: i64 = i32::MAX as i64;

/// The loaded settings: their words, and the worker that has them. Each state of Lua loads the
/// file, and all of them are one.
static WORKER: OnceLock<(String, Mutex<Worker>)> = OnceLock::new();

/// The bytes that a message needs beside its values, at most: names and lengths.
const OVERHEAD: usize = 1_024;

thread_local! {
    static OWN: RefCell<Own> = const {
        RefCell::new(Own { found: None, message: Vec::new(), bytes: Vec::new() })
    };
}

/// The memory that a thread keeps from one request to the next.
struct Own {
    found: Option<FoundPolicies>,
    /// Space for the message about a request.
    message: Vec<u8>,
    /// Space for values in hexadecimal.
    bytes: Vec<u8>,
}

/// Reads the settings: the first argument, words with a zero byte between them. HAProxy reads its
/// configuration, may be root, and has not changed its root.
pub(crate) fn prepare(arguments: &[&[u8]], results: &mut Results) {
    let prepared = arguments.first().ok_or("there are no settings").map_err(str::to_owned);
    match prepared.and_then(|words| load(words)) {
        Ok(()) => results.add(Item::Boolean(true)),
        Err(why) => results.refuse(&why),
    }
}

fn load(words: &[u8]) -> Result<(), String> {
    log_lines::start();
    let words = str::from_utf8(words).map_err(|_| "the settings are not UTF-8".to_owned())?;
    if let Some((before, worker)) = WORKER.get() {
        worker.lock().unwrap_or_else(PoisonError::into_inner).add_state();
        return match before == words {
            true => Ok(()),
            false => Err("it is loaded twice with different settings; load it once".to_owned()),
        };
    }
    let list: Vec<_> = words.split('\0').filter(|word| !word.is_empty()).collect();
    let worker = Worker::new(Settings::read(&list)?)?;
    // HAProxy loads one file after the other.
    let _ = WORKER.set((words.to_owned(), Mutex::new(worker)));
    Ok(())
}

/// The work of once a second, in the worker: it opens the table, and later says that this process
/// is alive. Returns lines for the log, each with its level before it.
pub(crate) fn tend(_: &[&[u8]], results: &mut Results) {
    const MOST_LINES: usize = 100;
    if let Some((_, worker)) = WORKER.get() {
        // If it panics each time, the log has to say so.
        guarded(|| worker.lock().unwrap_or_else(PoisonError::into_inner).tend());
    }
    for (level, line) in std::iter::from_fn(log_lines::next).take(MOST_LINES) {
        results.add_text(level.as_str().to_ascii_lowercase().as_bytes());
        results.add_text(line.as_bytes());
    }
}

/// The wait of a request in milliseconds: the value, and perhaps the name of the message and those
/// of its args.
pub(crate) fn wait(arguments: &[&[u8]]) -> i64 {
    let Some(Running { limiter, .. }) = Worker::running() else { return UNDECIDED };
    let wait = ask(arguments, |asked, space, found| {
        let found = found.get_or_insert_with(|| limiter.found_in_force());
        limiter.wait(found, asked, space)
    });
    in_milliseconds(wait.unwrap_or(WaitInProcess::Undecided))
}

/// As [`wait`], of a value that is an address, which [`address`] reads.
pub(crate) fn wait_of_address(arguments: &[&[u8]]) -> i64 {
    let Some(Running { limiter, .. }) = Worker::running() else { return UNDECIDED };
    let &[text, ref names @ ..] = arguments else { return UNDECIDED };
    let message = names.first().copied();
    let name = names.get(1).copied().unwrap_or_default();
    // Without an arg, the limiter says that it is missing.
    let arg = address(text).filter(|_| names.len() <= 2).map(|address| (name, address));
    let asked = AskedRequest { message, args: arg.as_slice() };
    let wait = with_own(text.len(), message, |Own { found, message: space, .. }| {
        limiter.wait(found.get_or_insert_with(|| limiter.found_in_force()), asked, space)
    });
    in_milliseconds(wait.unwrap_or(WaitInProcess::Undecided))
}

/// As [`wait`], in a text: behind it the other variables of the answer, in the order of the file,
/// with a '|' before each. One that is not set is empty.
pub(crate) fn fields(arguments: &[&[u8]], results: &mut Results) {
    // Without a result HAProxy would have no value, and its rules would not see that nothing was
    // decided.
    if guarded(|| decided_fields(arguments, results)).is_none() {
        Fields::new(results, &[]).finish(UNDECIDED);
    }
}

fn decided_fields(arguments: &[&[u8]], results: &mut Results) {
    let Some(Running { limiter, .. }) = Worker::running() else {
        return Fields::new(results, &[]).finish(UNDECIDED);
    };
    let in_force = limiter.in_force.load();
    let wanted = &in_force.policies.answers.others;
    let mut fields = Fields::new(results, wanted);
    let number = match wanted[..] {
        [] => wait(arguments),
        _ => {
            let wait = ask(arguments, |asked, space, _| limiter.answer(asked, space, &mut fields));
            in_milliseconds(wait.unwrap_or(WaitInProcess::Undecided))
        }
    };
    fields.finish(number);
}

/// Calls `code` with the question of a converter, space for the message about it, and what this
/// thread has found in force.
#[inline]
fn ask<T>(
    arguments: &[&[u8]],
    code: impl FnOnce(AskedRequest<'_>, &mut [u8], &mut Option<FoundPolicies>) -> T,
) -> Option<T> {
    let (text, rest) = arguments.split_first()?;
    let message = rest.first().copied();
    with_own(text.len(), message, |Own { found, message: space, bytes }| {
        let (one, several);
        let args = match rest.get(1..) {
            None | Some([]) => {
                one = [(&b""[..], untyped(text))];
                &one[..]
            }
            Some(names) => {
                several = args_of(text, names, bytes).unwrap_or_default();
                &several
            }
        };
        code(AskedRequest { message, args }, space, found)
    })
}

/// Calls `code`, about a message, with the memory of this thread, and with space for a value of
/// this length.
#[inline]
fn with_own<T>(
    length: usize,
    message: Option<&[u8]>,
    code: impl FnOnce(&mut Own) -> T,
) -> Option<T> {
    OWN.with(|own| {
        // Nothing in here calls Lua, so it is free.
        let mut own = own.try_borrow_mut().ok()?;
        // The space is made when it is first needed, and is larger than HAProxy's values.
        if own.message.len() < length + OVERHEAD {
            grow(&mut own.message, length + OVERHEAD);
            grow(&mut own.bytes, length);
        }
        may_panic(message.unwrap_or_default());
        Some(code(&mut own))
    })
}

fn in_milliseconds(wait: WaitInProcess) -> i64 {
    match wait {
        WaitInProcess::Undecided => UNDECIDED,
        WaitInProcess::Allowed => 0,
        WaitInProcess::Never => NEVER,
        // A wait of less than a millisecond is one, and a longer one than 24.8 days is less than
        // for ever.
        WaitInProcess::After(wait) => {
            i64::try_from(wait.millis_ceil()).unwrap_or(NEVER).clamp(1, NEVER - 1)
        }
    }
}

/// The answer of this process to a request about itself: the status, the type and the body. The
/// arguments are the method, the host, the path and the query.
pub(crate) fn about(arguments: &[&[u8]], results: &mut Results) {
    let &[method, host, path, query] = arguments else { return };
    let view = Worker::running().map(|running| &running.view);
    let asked = AskedOfAnother { method, host, path, query };
    let (status, kind, body) = about_itself(view, asked);
    results.add_text(status.to_string().as_bytes());
    results.add_text(kind.as_bytes());
    results.add_text(&body);
}

#[cold]
fn grow(buffer: &mut Vec<u8>, length: usize) {
    const LEAST: usize = 32 << 10;
    buffer.resize(length.max(LEAST), 0);
}
