//! Log files of a container, with a size limit.
//!
//! A line is `<time> <stdout|stderr> <F|P> <text>`, the CRI log format, so that log collectors for Kubernetes
//! can read it. `P` marks a part of a longer line. The current file is `output.log`; older ones are
//! `output.log.1` and so on, the oldest last. Output that cannot be written (a full disk) is lost; the
//! program keeps running.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;

use super::LogRetention;

/// The current file.
const LOG_FILE: &str = "output.log";
/// A longer line is split into parts, so that a program without line ends needs no more memory.
const MAX_LINE: usize = 16 * 1024;

/// The path of a log file by age; 0 is the current one.
pub(crate) fn rotated(container_dir: &Path, age: u32) -> PathBuf {
    if age == 0 { container_dir.join(LOG_FILE) } else { container_dir.join(format!("{LOG_FILE}.{age}")) }
}

/// The log files of a container.
pub(super) struct Log {
    container_dir: PathBuf,
    log_retention: LogRetention,
    file: File,
    size: u64,
}

impl Log {
    /// Opens the current file and appends to it.
    pub(super) fn open(container_dir: &Path, log_retention: LogRetention) -> io::Result<Self> {
        let file = File::options().create(true).append(true).open(rotated(container_dir, 0))?;
        let size = file.metadata()?.len();
        Ok(Log { container_dir: container_dir.to_owned(), log_retention, file, size })
    }

    fn write(&mut self, lines: &[u8]) {
        if lines.is_empty() {
            return;
        }
        let length = lines.len() as u64;
        if self.size > 0 && self.size + length > self.log_retention.max_file_bytes {
            // If rotation fails, truncate: the size limit always holds.
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
        let oldest = self.log_retention.max_files.saturating_sub(1);
        if oldest == 0 {
            return self.file.set_len(0);
        }
        for age in (0..oldest).rev() {
            match fs::rename(rotated(&self.container_dir, age), rotated(&self.container_dir, age + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        self.file = File::options().create(true).append(true).open(rotated(&self.container_dir, 0))?;
        Ok(())
    }
}

/// Copies both streams to the log until both have ended.
pub(super) async fn copy_to_log(stdout: pipe::Receiver, stderr: pipe::Receiver, mut log: Log) {
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
    lines: LineSplitter,
    pipe: pipe::Receiver,
    open: bool,
}

impl Stream {
    fn new(name: &'static str, pipe: pipe::Receiver) -> Self {
        Stream { lines: LineSplitter { name, rest: Vec::new() }, pipe, open: true }
    }

    /// Reads the next lines. Cancel-safe.
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

/// Splits a stream into log lines.
struct LineSplitter {
    name: &'static str,
    rest: Vec<u8>,
}

impl LineSplitter {
    fn take(&mut self, chunk: &[u8], now: Timestamp) -> Vec<u8> {
        let mut out = Vec::with_capacity(chunk.len() + 64);
        for part in chunk.split_inclusive(|byte| *byte == b'\n') {
            self.rest.extend_from_slice(part);
            if part.ends_with(b"\n") {
                self.rest.pop();
                self.put(&mut out, 'F', now);
            } else if self.rest.len() >= MAX_LINE {
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

    fn mk_lines() -> LineSplitter {
        LineSplitter { name: "stdout", rest: Vec::new() }
    }

    #[test]
    fn a_line_is_written_when_it_is_complete() {
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
    fn a_line_without_end_is_split_into_parts() {
        let mut lines = mk_lines();
        let mut written = Vec::new();
        for _ in 0..10 {
            written.extend(lines.take(&[b'x'; 8 * 1024], at()));
            assert!(lines.rest.len() < MAX_LINE);
        }
        assert_eq!(written.iter().filter(|byte| **byte == b'\n').count(), 5);
        assert!(String::from_utf8(written).unwrap().lines().all(|line| line.contains(" stdout P xxx")));
    }

    #[test]
    fn log_files_never_exceed_their_limits() {
        let container_dir = tempfile::tempdir().unwrap();
        let retention = LogRetention { max_file_bytes: 1000, max_files: 3 };
        let mut log = Log::open(container_dir.path(), retention).unwrap();
        for n in 0..500 {
            log.write(format!("line {n:>4} of a chatty program\n").as_bytes());
        }
        let sizes: Vec<u64> = (0..4)
            .filter_map(|age| Some(fs::metadata(rotated(container_dir.path(), age)).ok()?.len()))
            .collect();
        assert_eq!(sizes.len(), 3, "{sizes:?}");
        assert!(sizes.iter().all(|size| *size <= 1000), "{sizes:?}");
        let last = fs::read_to_string(rotated(container_dir.path(), 0)).unwrap();
        assert!(last.ends_with("line  499 of a chatty program\n"));
    }

    #[test]
    fn a_single_file_is_truncated() {
        let container_dir = tempfile::tempdir().unwrap();
        let mut log =
            Log::open(container_dir.path(), LogRetention { max_file_bytes: 20, max_files: 1 }).unwrap();
        log.write(b"first line ...\n");
        log.write(b"second line ...\n");
        assert_eq!(fs::read_to_string(rotated(container_dir.path(), 0)).unwrap(), "second line ...\n");
    }
}
