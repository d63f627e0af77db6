//! The output of a program: lines with time and stream, in files that are never longer than allowed.
//!
//! One line of a file is `<time> <stdout|stderr> <F|P> <text>`, the form in which Kubernetes' runtimes keep logs, so that
//! tools which read those read these. `P` marks a piece of a longer line. The file that is written is `output.log`; older
//! ones are `output.log.1` and so on, the oldest last. Output that cannot be written (a full disk) is lost; the program
//! goes on.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;

use super::Keep;

/// The file that is written.
const FILE: &str = "output.log";
/// A line longer than this is kept in pieces, so that a program without line ends costs no memory.
const PIECE: usize = 16 * 1024;

/// Where an older file is; 0 is the one that is written.
pub(crate) fn rotated(folder: &Path, age: u32) -> PathBuf {
    if age == 0 { folder.join(FILE) } else { folder.join(format!("{FILE}.{age}")) }
}

/// The files of one container.
pub(super) struct Log {
    folder: PathBuf,
    keep: Keep,
    file: File,
    size: u64,
}

impl Log {
    /// Goes on where the run before stopped.
    pub(super) fn open(folder: &Path, keep: Keep) -> io::Result<Self> {
        let file = File::options().create(true).append(true).open(rotated(folder, 0))?;
        let size = file.metadata()?.len();
        Ok(Log { folder: folder.to_owned(), keep, file, size })
    }

    fn write(&mut self, lines: &[u8]) {
        if lines.is_empty() {
            return;
        }
        let length = lines.len() as u64;
        if self.size > 0 && self.size + length > self.keep.bytes {
            // What cannot be rotated is begun anew: the limit holds in any case.
            if self.rotate().is_err() && self.file.set_len(0).is_err() {
                return;
            }
        }
        if self.file.write_all(lines).is_ok() {
            self.size += length;
        }
    }

    fn rotate(&mut self) -> io::Result<()> {
        self.size = 0;
        let oldest = self.keep.files.saturating_sub(1);
        if oldest == 0 {
            return self.file.set_len(0);
        }
        for age in (0..oldest).rev() {
            match fs::rename(rotated(&self.folder, age), rotated(&self.folder, age + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        self.file = File::options().create(true).append(true).open(rotated(&self.folder, 0))?;
        Ok(())
    }
}

/// Writes down both streams until both have ended.
pub(super) async fn write_down(stdout: pipe::Receiver, stderr: pipe::Receiver, mut log: Log) {
    let mut streams = [Stream::new("stdout", stdout), Stream::new("stderr", stderr)];
    let [out, err] = &mut streams;
    while out.open || err.open {
        let lines = tokio::select! {
            lines = out.next(), if out.open => lines,
            lines = err.next(), if err.open => lines,
        };
        log.write(&lines);
    }
}

struct Stream {
    lines: Lines,
    pipe: pipe::Receiver,
    open: bool,
}

impl Stream {
    fn new(name: &'static str, pipe: pipe::Receiver) -> Self {
        Stream { lines: Lines { name, rest: Vec::new() }, pipe, open: true }
    }

    /// What can be written by now. Nothing is lost if this is dropped while it waits.
    async fn next(&mut self) -> Vec<u8> {
        let mut chunk = [0; 8 * 1024];
        match self.pipe.read(&mut chunk).await {
            Ok(length @ 1..) => self.lines.take(&chunk[..length], Timestamp::now()),
            Ok(0) | Err(_) => {
                self.open = false;
                self.lines.finish(Timestamp::now())
            }
        }
    }
}

/// Cuts a stream into lines.
struct Lines {
    name: &'static str,
    rest: Vec<u8>,
}

impl Lines {
    fn take(&mut self, chunk: &[u8], now: Timestamp) -> Vec<u8> {
        let mut out = Vec::with_capacity(chunk.len() + 64);
        for part in chunk.split_inclusive(|byte| *byte == b'\n') {
            self.rest.extend_from_slice(part);
            if part.ends_with(b"\n") {
                self.rest.pop();
                self.put(&mut out, 'F', now);
            } else if self.rest.len() >= PIECE {
                self.put(&mut out, 'P', now);
            }
        }
        out
    }

    fn finish(&mut self, now: Timestamp) -> Vec<u8> {
        let mut out = Vec::new();
        if !self.rest.is_empty() {
            self.put(&mut out, 'F', now);
        }
        out
    }

    fn put(&mut self, out: &mut Vec<u8>, whole: char, now: Timestamp) {
        out.extend_from_slice(format!("{now:.6} {} {whole} ", self.name).as_bytes());
        out.append(&mut self.rest);
        out.push(b'\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at() -> Timestamp {
        "2026-01-01T00:00:00Z".parse().unwrap()
    }

    fn mk_lines() -> Lines {
        Lines { name: "stdout", rest: Vec::new() }
    }

    #[test]
    fn a_line_is_written_when_it_is_whole() {
        let mut lines = mk_lines();
        assert_eq!(lines.take(b"hel", at()), b"");
        let written = lines.take(b"lo\n\nnext", at());
        let written = String::from_utf8(written).unwrap();
        let stamp = "2026-01-01T00:00:00.000000Z stdout F";
        assert_eq!(written, format!("{stamp} hello\n{stamp} \n"));
        assert!(String::from_utf8(lines.finish(at())).unwrap().ends_with(" stdout F next\n"));
        assert_eq!(lines.finish(at()), b"");
    }

    #[test]
    fn a_line_without_end_is_kept_in_pieces() {
        let mut lines = mk_lines();
        let mut written = Vec::new();
        for _ in 0..10 {
            written.extend(lines.take(&[b'x'; 8 * 1024], at()));
            assert!(lines.rest.len() < PIECE);
        }
        assert_eq!(written.iter().filter(|byte| **byte == b'\n').count(), 5);
        assert!(String::from_utf8(written).unwrap().lines().all(|line| line.contains(" stdout P xxx")));
    }

    #[test]
    fn the_files_of_a_container_never_hold_more_than_allowed() {
        let folder = tempfile::tempdir().unwrap();
        let keep = Keep { bytes: 1000, files: 3 };
        let mut log = Log::open(folder.path(), keep).unwrap();
        for n in 0..500 {
            log.write(format!("line {n:>4} of a program that talks a lot\n").as_bytes());
        }
        let sizes: Vec<u64> =
            (0..4).filter_map(|age| Some(fs::metadata(rotated(folder.path(), age)).ok()?.len())).collect();
        assert_eq!(sizes.len(), 3, "{sizes:?}");
        assert!(sizes.iter().all(|size| *size <= 1000), "{sizes:?}");
        let last = fs::read_to_string(rotated(folder.path(), 0)).unwrap();
        assert!(last.ends_with("line  499 of a program that talks a lot\n"));
    }

    #[test]
    fn a_single_file_is_begun_anew() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = Log::open(folder.path(), Keep { bytes: 20, files: 1 }).unwrap();
        log.write(b"first line ...\n");
        log.write(b"second line ...\n");
        assert_eq!(fs::read_to_string(rotated(folder.path(), 0)).unwrap(), "second line ...\n");
    }
}
