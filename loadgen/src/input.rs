//! Files that are read whole: bounded, and never one that has no end.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

/// The bytes of a regular file of at most `most` bytes.
///
/// # Errors
/// Why not, in words without the name of the file. A pipe is refused as well: nobody may ever write to it.
pub fn read(path: &Path, most: u64) -> Result<Vec<u8>, String> {
    let found = std::fs::metadata(path).map_err(|error| error.to_string())?;
    if !found.is_file() {
        return Err("is no regular file; a folder, pipe or device can't be read to its end".to_owned());
    }
    // It may grow while it is read.
    until_end(File::open(path).map_err(|error| error.to_string())?, most)
}

/// The same of standard input, for whom `-` stands: who names it says that somebody writes to it.
///
/// # Errors
/// As [`read`].
pub fn read_or_stdin(path: &Path, most: u64) -> Result<Vec<u8>, String> {
    if path == Path::new("-") { until_end(std::io::stdin().lock(), most) } else { read(path, most) }
}

fn until_end(from: impl std::io::Read, most: u64) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    from.take(most.saturating_add(1)).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    if bytes.len() as u64 > most {
        return Err(format!("is larger than {most} bytes"));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_with_an_end_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("f");
        std::fs::write(&file, "12345").unwrap();
        assert_eq!(read(&file, 5).unwrap(), b"12345");
        assert!(read(&file, 4).unwrap_err().contains("larger than 4"));
        assert!(until_end(std::io::repeat(0), 4).unwrap_err().contains("larger than 4"));
        let fifo = dir.path().join("fifo");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        // Without the check each of these would never come back.
        for endless in [fifo.as_path(), Path::new("/dev/zero"), dir.path()] {
            assert!(read(endless, 5).unwrap_err().contains("no regular file"), "{}", endless.display());
        }
        assert!(read(Path::new("/nothing/here"), 5).unwrap_err().contains("No such file"));
    }
}
