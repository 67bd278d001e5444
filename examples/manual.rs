//! Writes the man pages and the completions of shells: `cargo run --example manual -- DIR`.
//! `MANUAL_DATE=2026-11-22` is the date in the pages.

use std::io::{self, Write};
use std::path::Path;
use std::{env, fs};

use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;

fn main() -> io::Result<()> {
    let directory = env::args_os().nth(1).ok_or_else(|| {
        io::Error::other("a folder is needed: cargo run --example manual -- DIR")
    })?;
    let [pages, completions] = ["man", "completions"].map(|name| Path::new(&directory).join(name));
    fs::create_dir_all(&pages)?;
    fs::create_dir_all(&completions)?;
    let mut command = gcra_spoa::testing::command();
    command.build();
    write_pages(&command, &pages)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        let mut command = gcra_spoa::testing::command();
        let path = clap_complete::generate_to(shell, &mut command, "gcra-spoa", &completions)?;
        if shell == Shell::Bash {
            // clap_complete 4.6 takes the '-' in the program's name for a space at one place, and
            // then completes nothing after a command.
            let script = fs::read_to_string(&path)?;
            fs::write(path, script.replace("gcra__subcmd__spoa", "gcra__spoa"))?;
        }
    }
    Ok(())
}

/// The page of a command, and those of its own commands.
fn write_pages(command: &Command, directory: &Path) -> io::Result<()> {
    let name = command.get_display_name().unwrap_or(command.get_name());
    // An empty date would be left out, and what is behind it would take its place.
    let date = env::var("MANUAL_DATE").unwrap_or_else(|_| " ".to_owned());
    let page = Man::new(command.clone())
        .title(name)
        .date(date)
        .source(concat!("gcra-spoa ", env!("CARGO_PKG_VERSION")))
        .manual("gcra-spoa manual");
    let mut out = Vec::new();
    page.render_title(&mut out)?;
    page.render_name_section(&mut out)?;
    page.render_synopsis_section(&mut out)?;
    page.render_description_section(&mut out)?;
    page.render_options_section(&mut out)?;
    if command.has_subcommands() {
        page.render_subcommands_section(&mut out)?;
    }
    if let Some(notes) = command.get_after_long_help().or(command.get_after_help()) {
        write_notes(&notes.to_string(), &mut out)?;
    }
    fs::write(directory.join(page.get_filename()), escaped(&String::from_utf8_lossy(&out)))?;
    command.get_subcommands().try_for_each(|command| write_pages(command, directory))
}

/// Other characters than those of ASCII by their names: not every reader of such pages knows
/// UTF-8.
fn escaped(page: &str) -> String {
    let escape = |char: char| match u32::from(char) {
        0..128 => char.to_string(),
        number => format!("\\[u{number:04X}]"),
    };
    page.chars().map(escape).collect()
}

/// The end of the help. It has examples and tables in it, so its lines stay as they are.
fn write_notes(notes: &str, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, ".SH NOTES\n.nf")?;
    for line in notes.lines() {
        // A line that begins with one of these would be a command. A '-' may become a hyphen, and
        // then an example cannot be pasted into a shell.
        let guard = if line.starts_with(['.', '\'']) { "\\&" } else { "" };
        writeln!(out, "{guard}{}", line.replace('\\', "\\e").replace('-', "\\-"))?;
    }
    writeln!(out, ".fi")
}
