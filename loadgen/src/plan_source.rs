//! Plan lines in order, from a file or made on the way. Only one line is in memory, whatever the plan's length.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use scenario::pipe::Shard;
use scenario::plan::{PLAN_VERSION, PlanLine};

use crate::error::LoadgenError;

const BUFFER_BYTES: usize = 256 * 1024;
/// A plan line is some hundred bytes; ids and checks are bounded.
const LINE_BYTES_MAX: usize = 1 << 20;

/// Makes the line of an index.
pub type MakeLine = Box<dyn Fn(u64) -> PlanLine + Send>;

enum Lines {
    File { path: PathBuf, reader: BufReader<File>, buffer: Vec<u8> },
    Made(MakeLine),
}

/// The lines of one shard, each handed out once.
pub struct PlanSource {
    lines: Lines,
    /// Lines of the whole plan.
    total: u64,
    shard: Shard,
    /// Index of the file's first line: a replay of one request has a plan of one line. The others follow without a gap.
    first: Option<u64>,
    /// Place of the next line in the file.
    at: u64,
    /// Place of the next line of this shard.
    next: u64,
}

impl PlanSource {
    /// Opens a plan file and counts its lines.
    ///
    /// # Errors
    /// Usage when the file can't be read, is empty, or its first line is no plan line of this version.
    pub fn open(path: &Path, shard: Shard) -> Result<Self, LoadgenError> {
        let usage = |why: String| LoadgenError::Usage(format!("plan file {}: {why}", path.display()));
        let open = || File::open(path).map_err(|error| usage(error.to_string()));
        let total = count_lines(open()?).map_err(|error| usage(error.to_string()))?;
        if total == 0 {
            return Err(usage("it has no line".to_owned()));
        }
        let file = |file| Lines::File {
            path: path.to_owned(),
            reader: BufReader::with_capacity(BUFFER_BYTES, file),
            buffer: Vec::new(),
        };
        let whole = Shard { shard: 0, of: 1 };
        // The first line tells whether this is a plan at all; the others are read when their turn comes.
        let mut look = Self { lines: file(open()?), total, shard: whole, first: None, at: 0, next: 0 };
        let first = look.next_below(1)?.map(|line| line.index);
        Ok(Self { lines: file(open()?), total, shard, first, at: 0, next: shard.shard })
    }

    /// A plan of `total` lines that are made on the way.
    #[must_use]
    pub fn made(total: u64, make: MakeLine) -> Self {
        Self {
            lines: Lines::Made(make),
            total,
            shard: Shard { shard: 0, of: 1 },
            first: None,
            at: 0,
            next: 0,
        }
    }

    /// Lines that this shard has.
    #[must_use]
    pub fn planned(&self) -> u64 {
        self.total.saturating_sub(self.shard.shard).div_ceil(self.shard.of)
    }

    /// Place of the next line of this shard in the plan, whether it exists or not.
    #[must_use]
    pub fn next_index(&self) -> u64 {
        self.next
    }

    /// The shard.
    #[must_use]
    pub fn shard(&self) -> Shard {
        self.shard
    }

    /// The next line if its place in the plan is before `end`.
    ///
    /// # Errors
    /// Usage when the line is no plan line; the plan can't be used any further.
    pub fn next_below(&mut self, end: u64) -> Result<Option<PlanLine>, LoadgenError> {
        if self.next >= end.min(self.total) {
            return Ok(None);
        }
        let wanted = self.next;
        let line = match &mut self.lines {
            Lines::Made(make) => make(wanted),
            Lines::File { path, reader, buffer } => {
                let bad = |why: String| {
                    LoadgenError::Usage(format!("plan file {}, line {}: {why}", path.display(), wanted + 1))
                };
                while self.at <= wanted {
                    read_line(reader, buffer).map_err(|error| bad(error.to_string()))?;
                    self.at += 1;
                }
                let line: PlanLine =
                    serde_json::from_slice(buffer).map_err(|error| bad(error.to_string()))?;
                if line.v != PLAN_VERSION {
                    return Err(bad(format!("version {}, this build reads {PLAN_VERSION}", line.v)));
                }
                let due = self.first.map_or(line.index, |first| first.saturating_add(wanted));
                if line.index != due {
                    return Err(bad(format!("it has index {} where {due} is due", line.index)));
                }
                if !is_header_text(line.id.as_str()) {
                    return Err(bad("its id can't stand in a header".to_owned()));
                }
                line
            }
        };
        self.next += self.shard.of;
        Ok(Some(line))
    }
}

fn is_header_text(id: &str) -> bool {
    !id.is_empty() && id.len() <= 256 && id.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Lines of a file; a last one without a line break counts.
fn count_lines(mut file: File) -> std::io::Result<u64> {
    let mut buffer = vec![0; BUFFER_BYTES];
    let (mut lines, mut last) = (0, b'\n');
    loop {
        let count = file.read(&mut buffer)?;
        if count == 0 {
            return Ok(lines + u64::from(last != b'\n'));
        }
        lines += memchr::memchr_iter(b'\n', &buffer[..count]).count() as u64;
        last = buffer[count - 1];
    }
}

fn read_line(reader: &mut BufReader<File>, buffer: &mut Vec<u8>) -> std::io::Result<()> {
    buffer.clear();
    let count = reader.by_ref().take(LINE_BYTES_MAX as u64 + 1).read_until(b'\n', buffer)?;
    match count {
        0 => Err(std::io::Error::other("the file ends before it; it was changed while in use")),
        count if count > LINE_BYTES_MAX => Err(std::io::Error::other("longer than a plan line can be")),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use scenario::identity::RequestId;
    use scenario::plan::PromptRecipe;

    fn line(index: u64) -> PlanLine {
        PlanLine {
            v: PLAN_VERSION,
            index,
            id: RequestId::new("s", 1, index),
            stream: false,
            max_tokens: 1,
            cancel: None,
            rules: Vec::new(),
            prompt: PromptRecipe { seed: 1, index, input_tokens: 1 },
            prompt_digest: String::new(),
            duplicate_of: None,
            checks: Vec::new(),
        }
    }

    fn text(lines: u64) -> String {
        (0..lines).map(|index| serde_json::to_string(&line(index)).unwrap() + "\n").collect()
    }

    fn open(text: &str, shard: Shard) -> Result<PlanSource, LoadgenError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        PlanSource::open(file.path(), shard)
    }

    fn indexes(source: &mut PlanSource, end: u64) -> Vec<u64> {
        std::iter::from_fn(|| source.next_below(end).unwrap()).map(|line| line.index).collect()
    }

    #[test]
    fn shards_share_the_plan_without_rest() {
        for (total, of) in [(1, 1), (10, 1), (10, 3), (11, 4), (2, 5)] {
            let mut all = Vec::new();
            for shard in 0..of {
                let mut source = open(&text(total), Shard { shard, of }).unwrap();
                let planned = source.planned();
                let got = indexes(&mut source, u64::MAX);
                assert_eq!(got.len() as u64, planned, "shard {shard}/{of} of {total}");
                all.extend(got);
            }
            all.sort_unstable();
            assert_eq!(all, (0..total).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_bound_holds_and_the_plan_goes_on_after_it() {
        let mut source = open(text(10).trim_end(), Shard { shard: 1, of: 2 }).unwrap();
        assert_eq!(indexes(&mut source, 4), [1, 3]);
        assert_eq!(source.next_index(), 5);
        assert_eq!(indexes(&mut source, 100), [5, 7, 9]);
    }

    #[test]
    fn bad_plans_are_usage_errors_with_the_line() {
        let whole = Shard { shard: 0, of: 1 };
        for bad in ["", "\n", "{}\n", "not json\n", &text(1).replace("\"v\":1", "\"v\":9")] {
            assert!(matches!(open(bad, whole), Err(LoadgenError::Usage(_))), "{bad:?}");
        }
        let mut gap =
            open(&format!("{}{}", text(1), serde_json::to_string(&line(2)).unwrap()), whole).unwrap();
        gap.next_below(9).unwrap();
        assert!(gap.next_below(9).unwrap_err().to_string().contains("line 2: it has index 2 where 1 is due"));
        // One line out of a plan is a plan: a request is replayed alone under its own index.
        let mut alone = open(&serde_json::to_string(&line(17)).unwrap(), whole).unwrap();
        assert_eq!(alone.next_below(9).unwrap().map(|line| line.index), Some(17));
        assert!(alone.next_below(9).unwrap().is_none());
        let split = text(1).replace("s-1-000000", "s-1\\r\\nX: y");
        assert!(matches!(open(&split, whole), Err(LoadgenError::Usage(_))), "no header injection by an id");
    }
}
