//! Lua's C API, as far as the module needs it, and the functions that Lua calls. All `unsafe` of
//! the crate is here.
//!
//! The ten functions of the API are the same in Lua 5.3 and 5.4, so one shared object serves
//! both. They are not linked: the process that loads the module has them.
//!
//! # What may happen in a call
//!
//! * Our code runs in [`guarded`], which calls nothing of Lua and from which no panic gets out.
//! * A function of Lua that allocates may raise an error, and that is a `longjmp` over our frames.
//!   So no value that has a destructor is alive in a frame of ours while one is called.
//! * A collection of garbage may run Lua code that calls us again. So the call that pushes bytes
//!   owns them.
#![allow(unsafe_code, reason = "the functions of Lua's C API")]

use std::ffi::{c_char, c_int};
use std::slice;

use crate::guarded::guarded;
use crate::module;
use crate::results::{Item, Results};

/// A state of Lua.
#[repr(C)]
struct State {
    opaque: [u8; 0],
}

type Function = unsafe extern "C-unwind" fn(*mut State) -> c_int;

unsafe extern "C-unwind" {
    fn lua_gettop(state: *mut State) -> c_int;
    fn lua_tolstring(state: *mut State, index: c_int, length: *mut usize) -> *const c_char;
    fn lua_checkstack(state: *mut State, slots: c_int) -> c_int;
    fn lua_pushnil(state: *mut State);
    fn lua_pushboolean(state: *mut State, value: c_int);
    fn lua_pushinteger(state: *mut State, value: i64);
    fn lua_pushlstring(state: *mut State, text: *const c_char, length: usize) -> *const c_char;
    fn lua_pushcclosure(state: *mut State, function: Function, values: c_int);
    fn lua_createtable(state: *mut State, array: c_int, fields: c_int);
    fn lua_setfield(state: *mut State, index: c_int, name: *const c_char);
}

/// The most arguments of a call: HAProxy gives a converter a value and five words.
const MOST_ARGUMENTS: usize = 8;

/// `require("gcra_lua")` calls this function: it makes the table of our functions.
///
/// # Safety
///
/// Lua calls it, with a state of its own.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn luaopen_gcra_lua(state: *mut State) -> c_int {
    let functions: [(&core::ffi::CStr, Function); 6] = [
        (c"prepare", prepare),
        (c"tend", tend),
        (c"wait", wait),
        (c"wait_of_address", wait_of_address),
        (c"fields", fields),
        (c"about", about),
    ];
    // SAFETY: `state` is Lua's, and a function has 20 free slots, of which these take 2. Nothing
    // here has a destructor.
    unsafe {
        lua_createtable(state, 0, 6);
        for (name, function) in functions {
            lua_pushcclosure(state, function, 0);
            lua_setfield(state, -2, name.as_ptr());
        }
    }
    1
}

unsafe extern "C-unwind" fn wait(state: *mut State) -> c_int {
    // SAFETY: `state` is Lua's.
    unsafe { number(state, module::wait) }
}

unsafe extern "C-unwind" fn wait_of_address(state: *mut State) -> c_int {
    // SAFETY: `state` is Lua's.
    unsafe { number(state, module::wait_of_address) }
}

/// Calls one of our functions, and returns its number to Lua.
///
/// # Safety
///
/// `state` is the one with which Lua has called us.
#[inline(always)]
unsafe fn number(state: *mut State, function: impl FnOnce(&[&[u8]]) -> i64) -> c_int {
    let mut space: [&[u8]; MOST_ARGUMENTS] = [&[]; _];
    // SAFETY: as the caller says. The arguments stay on the stack of Lua while `guarded` runs.
    let arguments = unsafe { arguments(state, &mut space) };
    let number = arguments.and_then(|arguments| guarded(|| function(arguments)));
    // SAFETY: as in `luaopen_gcra_lua`; this allocates nothing.
    unsafe { lua_pushinteger(state, number.unwrap_or(module::UNDECIDED)) };
    1
}

macro_rules! functions {
    ($($name:ident),*) => {$(
        unsafe extern "C-unwind" fn $name(state: *mut State) -> c_int {
            // SAFETY: `state` is Lua's.
            unsafe { call(state, module::$name) }
        }
    )*};
}

functions!(prepare, tend, fields, about);

/// Calls one of our functions, and returns its results to Lua.
///
/// # Safety
///
/// `state` is the one with which Lua has called us.
unsafe fn call(state: *mut State, function: fn(&[&[u8]], &mut Results)) -> c_int {
    let mut space: [&[u8]; MOST_ARGUMENTS] = [&[]; _];
    // SAFETY: as the caller says. The arguments stay on the stack of Lua while `guarded` runs.
    let arguments = unsafe { arguments(state, &mut space) };
    let results = guarded(|| {
        let mut results = Results::taken();
        match arguments {
            Some(arguments) => function(arguments, &mut results),
            None => results.refuse("an argument is no string, or there are too many"),
        }
        Box::into_raw(results)
    });
    let Some(results) = results else { return 0 };
    // SAFETY: `results` came from a box just now, and nothing else has it. It is a raw pointer, so
    // no destructor is alive here; if Lua raises an error, the box is never freed, and no more.
    // The pushed bytes lie in it, and it is not changed until `given_back`.
    unsafe {
        let Results { bytes, items } = &*results;
        // This raises no error. 0 means that there is no memory for them.
        let count = match c_int::try_from(items.len()) {
            Ok(count) if lua_checkstack(state, count) != 0 => count,
            _ => 0,
        };
        for item in items.iter().take(count.unsigned_abs() as usize) {
            match *item {
                Item::Nil => lua_pushnil(state),
                Item::Boolean(value) => lua_pushboolean(state, value.into()),
                Item::Text { begin, length } => {
                    let text = bytes.get(begin..begin + length).unwrap_or_default();
                    lua_pushlstring(state, text.as_ptr().cast(), text.len());
                }
            }
        }
        Results::given_back(Box::from_raw(results));
        count
    }
}

/// The arguments of a call, in `space`. `None` if one is no text, or there are more than there is
/// space for.
///
/// # Safety
///
/// `state` is the one with which Lua has called us. No value with a destructor is alive in the
/// caller. The stack of Lua keeps all its values while the arguments are used.
#[inline]
unsafe fn arguments<'a, 's>(
    state: *mut State,
    space: &'a mut [&'s [u8]],
) -> Option<&'a [&'s [u8]]> {
    // SAFETY: as the caller says.
    let count = usize::try_from(unsafe { lua_gettop(state) }).ok()?;
    let arguments = space.get_mut(..count)?;
    for (argument, index) in arguments.iter_mut().zip(1..) {
        // SAFETY: there are `count` values on the stack. A number is made a string, which can
        // raise an error; nothing has a destructor here or in a caller then. The result is null
        // for any other value. Else it has `length` bytes, and is not moved while it is on the
        // stack.
        unsafe {
            let mut length = 0;
            let text = lua_tolstring(state, index, &raw mut length);
            if text.is_null() {
                return None;
            }
            *argument = slice::from_raw_parts(text.cast(), length);
        }
    }
    Some(arguments)
}
