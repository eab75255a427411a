//! Lines of a file as bytes, one at a time and without a copy: what judges a million lines must not build each of them.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use crate::rundir::{BadLine, LINE_LEN_MAX};

/// Bytes read at once.
const CHUNK: usize = 256 * 1024;

/// One line, without its end.
#[derive(Clone, Copy, Debug)]
pub struct RawLine<'a> {
    /// Number from 1.
    pub number: u64,
    /// Byte offset of its begin, for [`line_at`].
    pub offset: u64,
    /// Its bytes.
    pub bytes: &'a [u8],
}

/// The lines of one file. A last line without its end is an error: whoever wrote it was cut off.
#[derive(Debug)]
pub struct RawLines {
    file: String,
    input: File,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    number: u64,
    offset: u64,
    done: bool,
}

impl RawLines {
    /// Opens a file. `name` is what errors call it.
    ///
    /// # Errors
    /// What the system says.
    pub fn open(path: &Path, name: &str) -> io::Result<Self> {
        Ok(Self {
            file: name.to_owned(),
            input: File::open(path)?,
            buffer: vec![0; CHUNK],
            start: 0,
            end: 0,
            number: 0,
            offset: 0,
            done: false,
        })
    }

    /// The next line. Not an `Iterator`, because the line borrows the buffer.
    #[expect(clippy::should_implement_trait, reason = "a lending iterator has no trait")]
    pub fn next(&mut self) -> Option<Result<RawLine<'_>, BadLine>> {
        if self.done {
            return None;
        }
        let mut searched = 0;
        loop {
            let window = &self.buffer[self.start + searched..self.end];
            if let Some(at) = memchr::memchr(b'\n', window) {
                let len = searched + at;
                if len + 1 > LINE_LEN_MAX {
                    return Some(Err(self.too_long()));
                }
                let (begin, offset) = (self.start, self.offset);
                self.start += len + 1;
                self.offset += len as u64 + 1;
                self.number += 1;
                let bytes = &self.buffer[begin..begin + len];
                return Some(Ok(RawLine { number: self.number, offset, bytes }));
            }
            searched = self.end - self.start;
            if searched > LINE_LEN_MAX {
                return Some(Err(self.too_long()));
            }
            match self.fill() {
                Ok(0) if searched == 0 => {
                    self.done = true;
                    return None;
                }
                Ok(0) => {
                    return Some(
                        Err(self.bad("the last line has no end: its writer was cut off".to_owned())),
                    );
                }
                Ok(_) => {}
                Err(error) => return Some(Err(self.bad(error.to_string()))),
            }
        }
    }

    /// Moves the begun line to the front and reads more behind it.
    fn fill(&mut self) -> io::Result<usize> {
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        if self.buffer.len() - self.end < CHUNK / 2 {
            self.buffer.resize(self.buffer.len() * 2, 0);
        }
        loop {
            match self.input.read(&mut self.buffer[self.end..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
                Ok(count) => {
                    self.end += count;
                    return Ok(count);
                }
            }
        }
    }

    fn too_long(&mut self) -> BadLine {
        self.bad(format!("line is longer than {LINE_LEN_MAX} bytes"))
    }

    /// An error that ends the reading.
    fn bad(&mut self, why: String) -> BadLine {
        self.done = true;
        BadLine { file: self.file.clone(), line: self.number + 1, why }
    }
}

/// The one line that begins at an offset, without its end; `None` when it can't be read.
#[must_use]
pub fn line_at(path: &Path, offset: u64) -> Option<Vec<u8>> {
    let mut file = File::open(path).ok()?;
    file.seek(SeekFrom::Start(offset)).ok()?;
    let mut line = Vec::new();
    BufReader::new(file.take(LINE_LEN_MAX as u64)).read_until(b'\n', &mut line).ok()?;
    line.pop_if(|last| *last == b'\n')?;
    Some(line)
}
