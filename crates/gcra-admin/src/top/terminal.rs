//! [`Terminal`]: what `top` draws on.

use std::io::{self, Write};
use std::{panic, thread};

use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::style::{Attribute, Color, Print, SetAttribute, SetForegroundColor};
use crossterm::terminal::{
    Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode,
    enable_raw_mode, size,
};
use crossterm::{execute, queue};
use gcra_text::columns::{Style, Styled};
use gcra_text::visible::is_hidden;
use unicode_width::UnicodeWidthChar as _;

/// The other screen of the terminal. The first one comes back when this is dropped, and before
/// the message of a panic.
#[derive(Debug)]
pub(super) struct Terminal;

impl Terminal {
    pub(super) fn open() -> io::Result<Self> {
        let hook = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            restore();
            hook(info);
        }));
        enable_raw_mode()?;
        // From here on, an error restores it.
        let terminal = Self;
        execute!(io::stdout(), EnterAlternateScreen, Hide)?;
        Ok(terminal)
    }

    /// Draws the lines that `page` has for a width and a height.
    pub(super) fn draw(
        &mut self,
        page: impl FnOnce(usize, usize) -> Vec<Styled>,
    ) -> io::Result<()> {
        let (width, height) = size()?;
        let mut bytes = Vec::new();
        let mut lines = page(width.into(), height.into());
        // Rows of the last page are blank now.
        lines.resize(height.into(), Styled::default());
        write_page(&lines, width.into(), &mut bytes)?;
        // In one piece, so that no half page is seen.
        let mut stdout = io::stdout().lock();
        stdout.write_all(&bytes)?;
        stdout.flush()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // A second time would move the cursor onto the message of the panic.
        if !thread::panicking() {
            restore();
        }
    }
}

fn restore() {
    // Raw mode first, because it matters more. Nothing can be done if this fails.
    let _ = disable_raw_mode();
    let _ = execute!(io::stdout(), LeaveAlternateScreen, Show);
}

/// Writes a line in each row.
fn write_page(lines: &[Styled], width: usize, out: &mut impl Write) -> io::Result<()> {
    for (row, line) in (0..).zip(lines) {
        queue!(out, MoveTo(0, row))?;
        write_line(line, width, out)?;
    }
    Ok(())
}

/// Writes what fits of a line, without what could move the cursor, and blanks the rest of the row.
fn write_line(line: &Styled, width: usize, out: &mut impl Write) -> io::Result<()> {
    let mut left = Some(width);
    for (text, style) in &line.0 {
        match style {
            Style::Plain => {}
            Style::Bold => queue!(out, SetAttribute(Attribute::Bold))?,
            Style::Dim => queue!(out, SetAttribute(Attribute::Dim))?,
            Style::Red => queue!(out, SetForegroundColor(Color::DarkRed))?,
            Style::Yellow => queue!(out, SetForegroundColor(Color::DarkYellow))?,
        }
        for c in text.chars().filter(|c| !is_hidden(*c)) {
            // Most characters take one column, and some two.
            left = left.and_then(|left| left.checked_sub(c.width().unwrap_or(0)));
            if left.is_none() {
                break;
            }
            queue!(out, Print(c))?;
        }
        if *style != Style::Plain {
            queue!(out, SetAttribute(Attribute::Reset))?;
        }
    }
    // Behind a full row the cursor stands on its last character.
    if left != Some(0) {
        queue!(out, Clear(ClearType::UntilNewLine))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rows of a terminal, without styles.
    struct Grid(Vec<Vec<char>>);

    impl Grid {
        /// Does what the bytes say, as far as `top` uses it.
        fn take(&mut self, bytes: &[u8]) {
            let text = String::from_utf8(bytes.to_vec()).unwrap();
            let (mut row, mut column) = (0, 0);
            let mut pieces = text.split("\x1b[");
            let put = |grid: &mut Self, row: usize, column: &mut usize, text: &str| {
                for c in text.chars() {
                    grid.0[row][*column] = c;
                    // The second column of a wide character.
                    (1..c.width().unwrap()).for_each(|next| grid.0[row][*column + next] = '\0');
                    *column += c.width().unwrap();
                }
            };
            put(self, row, &mut column, pieces.next().unwrap());
            for piece in pieces {
                let end = piece.find(|c: char| c.is_ascii_alphabetic()).unwrap();
                let (numbers, text) = (&piece[..end], &piece[end + 1..]);
                match piece.as_bytes()[end] {
                    b'H' => {
                        let (y, x) = numbers.split_once(';').unwrap();
                        (row, column) = (y.parse().unwrap(), x.parse().unwrap());
                        (row, column) = (row - 1, column - 1);
                    }
                    b'K' => self.0[row][column..].fill(' '),
                    b'm' => {}
                    other => panic!("{other}"),
                }
                put(self, row, &mut column, text);
            }
        }

        fn rows(&self) -> Vec<String> {
            self.0.iter().map(|row| row.iter().filter(|c| **c != '\0').collect()).collect()
        }
    }

    fn plain(text: &str) -> Styled {
        Styled::new(text, Style::Plain)
    }

    #[test]
    fn nothing_old_is_left_in_a_row() {
        let mut grid = Grid(vec![vec!['?'; 8]; 3]);
        for (lines, rows) in [
            (["abcdefgh", "same", "long"], ["abcdefgh", "same    ", "long    "]),
            (["ab", "same", ""], ["ab      ", "same    ", "        "]),
        ] {
            let mut bytes = Vec::new();
            write_page(&lines.map(plain), 8, &mut bytes).unwrap();
            grid.take(&bytes);
            assert_eq!(grid.rows(), rows);
        }
    }

    #[test]
    fn each_piece_has_its_style_and_no_other() {
        let pieces = [
            ("a", Style::Bold),
            ("b", Style::Plain),
            ("c", Style::Dim),
            ("d", Style::Red),
            ("e", Style::Yellow),
        ];
        let line = Styled(pieces.map(|(text, style)| (text.to_owned(), style)).into());
        let mut bytes = Vec::new();
        write_line(&line, 5, &mut bytes).unwrap();
        let wanted = "\x1b[1ma\x1b[0mb\x1b[2mc\x1b[0m\x1b[38;5;1md\x1b[0m\x1b[38;5;3me\x1b[0m";
        assert_eq!(String::from_utf8(bytes).unwrap(), wanted);
    }

    /// A line has no more characters than the terminal has columns, but some take two.
    #[test]
    fn wide_characters_do_not_run_into_the_next_row() {
        for (width, wanted) in [(6, "日本語"), (5, "日本"), (4, "日本"), (1, "")] {
            let mut grid = Grid(vec![vec!['?'; width]]);
            let mut bytes = Vec::new();
            write_page(&[plain("日本語x")], width, &mut bytes).unwrap();
            grid.take(&bytes);
            assert_eq!(grid.rows()[0].trim_end(), wanted, "{width}");
        }
    }

    #[test]
    fn what_a_name_says_never_moves_the_cursor() {
        let mut bytes = Vec::new();
        write_line(&plain("a\x1b[2J\r\u{202e}b"), 6, &mut bytes).unwrap();
        assert_eq!(bytes, b"a[2Jb\x1b[K");
    }
}
