//! Reads the output of instances.
//!
//! Shims write the output to files (see `shim::output` for the format). Reading needs no running provider,
//! and the output of a crashed container stays available as long as its instance exists. A follow request
//! polls the end of the file five times a second. A request of any length needs a fixed amount of memory, and
//! the last lines are searched from the end of the file; only of a previous run they are kept in memory.
//!
//! The runs of a container write to the same files. The lines of a previous run are found by their times: the
//! state file of the shim has the start of the current run and of the one before it.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt as _};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::process::instance_dir::{self, InstanceRecord};
use crate::shim;

/// Poll interval of a follow request.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Bytes per read. A reader that is slower than the program lags behind by reads of this size.
const MAX_READ: u64 = 1 << 20;
/// Bytes per read when searching the last lines from the end.
const TAIL_BLOCK: usize = 64 << 10;

/// Why logs cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// No container of the instance has run on this host, or the instance is deleted.
    #[error(
        "failed to find output of instance {instance}: no container of it has run on this host, or it is deleted"
    )]
    NoInstance {
        /// The instance in the request.
        instance: String,
    },
    /// The instance has no such container, or several and the request names none.
    #[error(
        "failed to find output of {} of instance {instance}: it has {}; name one of them",
        if container.is_empty() { "a container that was not named".to_owned() } else { format!("container {container}") },
        available.join(", ")
    )]
    NoContainer {
        /// The instance.
        instance: String,
        /// The container in the request; empty if it names none.
        container: String,
        /// The containers of the instance.
        available: Vec<String>,
    },
    /// No run of the container has ended.
    #[error("container {container} of instance {instance} has no previous run: it has not been restarted")]
    NoPreviousRun {
        /// The instance.
        instance: String,
        /// The container.
        container: String,
    },
    /// Reading a file failed.
    #[error("failed to read output of instance {instance}: {source}")]
    Read {
        /// The instance.
        instance: String,
        /// The error of the operating system.
        source: io::Error,
    },
}

/// Which lines to read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogQuery {
    /// The container; optional if the instance has only one.
    pub container: Option<String>,
    /// Only this many of the last lines.
    pub tail: Option<usize>,
    /// Only lines written at or after this time.
    pub since: Option<Timestamp>,
    /// Only lines of the last run that has ended.
    pub previous: bool,
}

/// A log request over the API, with the parameters of `kubectl logs`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogRequest {
    /// Which lines to read.
    pub query: LogQuery,
    /// Whether to wait for further lines; without effect on a previous run, which has none.
    pub follow: bool,
    /// Whether each line starts with its time.
    pub timestamps: bool,
}

impl LogRequest {
    /// Parses the query parameters `container`, `follow`, `previous`, `timestamps`, `tailLines`,
    /// `sinceSeconds` and `sinceTime`. An error names the invalid parameter.
    pub fn from_parameters(
        parameter: impl Fn(&str) -> Option<String>,
        now: Timestamp,
    ) -> Result<LogRequest, String> {
        fn parsed<T: std::str::FromStr>(
            name: &str,
            value: Option<String>,
            what: &str,
        ) -> Result<Option<T>, String> {
            let parse = |text: String| text.parse().map_err(|_| format!("{name}={text}: it must be {what}"));
            value.filter(|text| !text.is_empty()).map(parse).transpose()
        }
        let truth = |name| Ok::<_, String>(parsed(name, parameter(name), "true or false")?.unwrap_or(false));
        let number = |name| parsed::<u32>(name, parameter(name), "a number, zero or more");
        let seconds = number("sinceSeconds")?;
        let time =
            parsed::<Timestamp>("sinceTime", parameter("sinceTime"), "a time such as 2026-01-01T00:00:00Z")?;
        let since = match (seconds, time) {
            (Some(_), Some(_)) => {
                return Err("sinceSeconds and sinceTime are exclusive: give one of them".to_owned());
            }
            (Some(seconds), None) => now.checked_sub(SignedDuration::from_secs(seconds.into())).ok(),
            (None, time) => time,
        };
        let tail = number("tailLines")?.map(|lines| lines as usize);
        let container = parameter("container").filter(|name| !name.is_empty());
        let query = LogQuery { container, tail, since, previous: truth("previous")? };
        Ok(LogRequest { query, follow: truth("follow")?, timestamps: truth("timestamps")? })
    }
}

/// A line of a container's output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLine {
    /// When it was written.
    pub at: Timestamp,
    /// True if it was written to standard error.
    pub error: bool,
    /// False if the line continues in the next entry.
    pub whole: bool,
    /// The text without the line end; invalid UTF-8 is replaced.
    pub text: String,
}

impl LogLine {
    /// The line as `kubectl logs` prints it. A part of a longer line has no line end.
    pub fn format(&self, timestamp: bool) -> String {
        let time = if timestamp { format!("{:.6} ", self.at) } else { String::new() };
        format!("{time}{}{}", self.text, if self.whole { "\n" } else { "" })
    }

    /// Parses a line of a log file; `None` if it is not in the log format.
    fn parse(line: &[u8]) -> Option<LogLine> {
        let mut parts = line.strip_suffix(b"\n").unwrap_or(line).splitn(4, |byte| *byte == b' ');
        let mut head = || std::str::from_utf8(parts.next()?).ok();
        let (at, stream, whole) = (head()?.parse().ok()?, head()?, head()?);
        let text = String::from_utf8_lossy(parts.next()?).into_owned();
        Some(LogLine { at, error: stream == "stderr", whole: whole == "F", text })
    }
}

/// Reads the output of the instances of one cell.
#[derive(Clone, Debug)]
pub struct LogReader {
    dir: PathBuf,
}

impl LogReader {
    /// A reader of the state directory [`crate::ProcessSettings::dir`].
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        LogReader { dir: dir.into() }
    }

    /// The existing lines, oldest first.
    pub async fn lines(&self, uid: &str, query: &LogQuery) -> Result<Vec<LogLine>, LogError> {
        Ok(self.existing(uid, query)?.collect().await)
    }

    /// Streams the existing lines, oldest first.
    pub fn existing(
        &self,
        uid: &str,
        query: &LogQuery,
    ) -> Result<impl Stream<Item = LogLine> + Send + use<>, LogError> {
        let cursor = self.cursor(uid, query)?;
        let end = cursor.newest().map_err(|source| LogError::Read { instance: uid.to_owned(), source })?;
        let pieces = futures::stream::unfold(Some(cursor), move |cursor| async move {
            let (more, cursor) = cursor?.read().await?;
            // Lines written during the read are left to follow requests; otherwise the read might never end.
            let done = more.is_empty() || end.is_some_and(|end| cursor.is_beyond(end));
            Some((futures::stream::iter(more), (!done).then_some(cursor)))
        });
        Ok(since(query.since, pieces.flatten().take(query.tail.unwrap_or(usize::MAX))))
    }

    /// Streams the existing lines, and then new ones until the instance is deleted.
    pub fn follow(
        &self,
        uid: &str,
        query: &LogQuery,
    ) -> Result<impl Stream<Item = LogLine> + Send + use<>, LogError> {
        let cursor = self.cursor(uid, query)?;
        let pieces = futures::stream::unfold(cursor, |mut cursor| async move {
            loop {
                let (more, after) = cursor.read().await?;
                if !more.is_empty() {
                    return Some((futures::stream::iter(more), after));
                }
                if !after.folder.exists() {
                    return None;
                }
                cursor = after;
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        });
        Ok(since(query.since, pieces.flatten()))
    }

    /// Streams the lines of the last run that has ended, oldest first.
    pub async fn previous(
        &self,
        uid: &str,
        query: &LogQuery,
    ) -> Result<impl Stream<Item = LogLine> + Send + use<>, LogError> {
        let (from, until) = self.ended_run(uid, query)?;
        let every = LogQuery { tail: None, since: query.since.max(Some(from)), ..query.clone() };
        let lines = self.existing(uid, &every)?;
        let lines =
            lines.take_while(move |line| std::future::ready(until.is_none_or(|until| line.at < until)));
        let Some(tail) = query.tail else { return Ok(lines.left_stream()) };
        let last = lines.fold(VecDeque::new(), move |mut last, line| {
            last.push_back(line);
            if last.len() > tail {
                last.pop_front();
            }
            std::future::ready(last)
        });
        Ok(futures::stream::iter(last.await).right_stream())
    }

    /// Streams the response to a log request as text.
    pub async fn respond(
        &self,
        uid: &str,
        request: &LogRequest,
    ) -> Result<BoxStream<'static, Bytes>, LogError> {
        let timestamps = request.timestamps;
        let show = move |line: LogLine| Bytes::from(line.format(timestamps));
        Ok(match request {
            LogRequest { query, .. } if query.previous => self.previous(uid, query).await?.map(show).boxed(),
            LogRequest { query, follow: true, .. } => self.follow(uid, query)?.map(show).boxed(),
            LogRequest { query, .. } => self.existing(uid, query)?.map(show).boxed(),
        })
    }

    fn cursor(&self, uid: &str, query: &LogQuery) -> Result<Cursor, LogError> {
        let folder = self.folder(uid, query)?;
        Cursor::begin(&folder, query.tail)
            .map_err(|source| LogError::Read { instance: uid.to_owned(), source })
    }

    /// The time of the last run that has ended.
    fn ended_run(&self, uid: &str, query: &LogQuery) -> Result<(Timestamp, Option<Timestamp>), LogError> {
        let folder = self.folder(uid, query)?;
        let state = shim::ShimState::read(&folder)
            .map_err(|source| LogError::Read { instance: uid.to_owned(), source })?;
        state.and_then(|state| state.ended_run()).ok_or_else(|| LogError::NoPreviousRun {
            instance: uid.to_owned(),
            container: folder.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        })
    }

    /// The UID of the instance with this namespace and name on this host.
    pub fn uid_of(&self, namespace: &str, name: &str) -> Option<String> {
        let record = InstanceRecord::all(&self.dir).ok()?;
        record
            .into_iter()
            .find(|record| record.namespace == namespace && record.name == name)
            .map(|record| record.uid)
    }

    fn folder(&self, uid: &str, query: &LogQuery) -> Result<PathBuf, LogError> {
        let missing = || LogError::NoInstance { instance: uid.to_owned() };
        let instance_dir = instance_dir::path(&self.dir, uid).ok_or_else(missing)?;
        let available = instance_dir::containers(&instance_dir).map_err(|_| missing())?;
        // An instance whose image is unavailable has a directory without containers.
        if !instance_dir.is_dir() || available.is_empty() {
            return Err(missing());
        }
        let wanted = query.container.as_deref();
        let found: Vec<&String> =
            available.iter().filter(|name| wanted.is_none_or(|wanted| wanted == *name)).collect();
        match found.as_slice() {
            [one] => Ok(instance_dir.join(one)),
            _ => Err(LogError::NoContainer {
                instance: uid.to_owned(),
                container: wanted.unwrap_or_default().to_owned(),
                available,
            }),
        }
    }
}

/// Filters out lines before the given time.
fn since(
    since: Option<Timestamp>,
    lines: impl Stream<Item = LogLine> + Send,
) -> impl Stream<Item = LogLine> + Send {
    lines.filter(move |line| std::future::ready(since.is_none_or(|since| line.at >= since)))
}

/// The offset after which the file has the last `lines` lines; `None` if it has fewer, and then `lines` is
/// the number still missing. Reads from the end, so the cost does not depend on the size of the file.
fn from_end(file: &mut File, lines: &mut usize) -> io::Result<Option<u64>> {
    let mut left = *lines + 1; // includes the line end before the first wanted line
    let mut until = file.metadata()?.len();
    let mut block = vec![0; TAIL_BLOCK];
    while until > 0 {
        let length = until.min(TAIL_BLOCK as u64);
        until -= length;
        let block = &mut block[..length as usize];
        file.seek(SeekFrom::Start(until))?;
        file.read_exact(block)?;
        for at in (0..block.len()).rev().filter(|at| block[*at] == b'\n') {
            left -= 1;
            if left == 0 {
                return Ok(Some(until + at as u64 + 1));
            }
        }
    }
    *lines = left - 1;
    Ok(None)
}

/// A position in the output of a container. A file keeps its inode when it is rotated.
struct Cursor {
    folder: PathBuf,
    file: Option<u64>,
    /// That file. It is read to its end after the instance and its files were deleted.
    held: Option<File>,
    at: u64,
}

impl Cursor {
    /// Starts at the first of the last `tail` lines, or at the oldest line.
    fn begin(folder: &Path, tail: Option<usize>) -> io::Result<Self> {
        let mut cursor = Cursor { folder: folder.to_owned(), file: None, held: None, at: 0 };
        let Some(mut left) = tail else { return Ok(cursor) };
        for age in 0.. {
            let mut file = match File::open(shim::rotated(folder, age)) {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::NotFound && age == 0 => continue,
                Err(error) if error.kind() == io::ErrorKind::NotFound => break,
                Err(error) => return Err(error),
            };
            cursor.file = Some(file.metadata()?.ino());
            if let Some(at) = from_end(&mut file, &mut left)? {
                cursor.at = at;
                break;
            }
        }
        Ok(cursor)
    }

    /// Inode and size of the current file.
    fn newest(&self) -> io::Result<Option<(u64, u64)>> {
        match std::fs::metadata(shim::rotated(&self.folder, 0)) {
            Ok(file) => Ok(Some((file.ino(), file.len()))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None), // no output yet, or being rotated
            Err(error) => Err(error),
        }
    }

    fn is_beyond(&self, (file, length): (u64, u64)) -> bool {
        self.file == Some(file) && self.at >= length
    }

    /// Reads the next lines on a blocking thread; `None` on an error.
    async fn read(mut self) -> Option<(Vec<LogLine>, Self)> {
        let read = tokio::task::spawn_blocking(move || self.more().ok().map(|more| (more, self)));
        read.await.ok()?
    }

    /// Reads the next lines, at most `MAX_READ` bytes.
    fn more(&mut self) -> io::Result<Vec<LogLine>> {
        while let Some((mut file, age)) = self.open()? {
            if file.metadata()?.len() < self.at {
                self.at = 0; // the file was truncated
            }
            file.seek(SeekFrom::Start(self.at))?;
            let mut bytes = Vec::new();
            file.take(MAX_READ).read_to_end(&mut bytes)?;
            let end = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
            if end == 0 && bytes.len() as u64 == MAX_READ {
                self.at += MAX_READ; // no shim writes such a line
                continue;
            }
            if end > 0 {
                self.at += end as u64;
                let lines = bytes[..end].split_inclusive(|byte| *byte == b'\n');
                let lines: Vec<LogLine> = lines.filter_map(LogLine::parse).collect();
                if !lines.is_empty() {
                    return Ok(lines);
                }
                continue;
            }
            if age == 0 {
                return Ok(Vec::new());
            }
            // A rotated file is read to its end: continue with the next newer one.
            self.file = File::open(shim::rotated(&self.folder, age - 1))?.metadata()?.ino().into();
            self.at = 0;
        }
        Ok(Vec::new())
    }

    /// Opens the file of this position, and returns its age. If it was deleted, opens the oldest remaining
    /// one; if there is none, returns the deleted one.
    fn open(&mut self) -> io::Result<Option<(File, u32)>> {
        let mut oldest = None;
        for age in 0.. {
            let file = match File::open(shim::rotated(&self.folder, age)) {
                Ok(file) => file,
                // The current file is missing for a moment during rotation.
                Err(error) if error.kind() == io::ErrorKind::NotFound && age == 0 => continue,
                Err(error) if error.kind() == io::ErrorKind::NotFound => break,
                Err(error) => return Err(error),
            };
            let inode = file.metadata()?.ino();
            if self.file == Some(inode) {
                return self.hold(file, age).map(Some);
            }
            oldest = Some((file, age, inode));
        }
        let Some((file, age, inode)) = oldest else {
            return self.held.as_ref().map(|file| Ok((file.try_clone()?, 0))).transpose();
        };
        self.file = Some(inode);
        self.at = 0;
        self.hold(file, age).map(Some)
    }

    fn hold(&mut self, file: File, age: u32) -> io::Result<(File, u32)> {
        self.held = Some(file.try_clone()?);
        Ok((file, age))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::fs;
    use std::io::Write as _;

    const UID: &str = "0a1b";

    fn mk_logs() -> (tempfile::TempDir, LogReader, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join(UID).join("app");
        fs::create_dir_all(&folder).unwrap();
        let logs = LogReader::new(dir.path());
        (dir, logs, folder)
    }

    fn write(folder: &Path, age: u32, range: std::ops::Range<u32>) {
        let mut file = File::options().create(true).append(true).open(shim::rotated(folder, age)).unwrap();
        for n in range {
            writeln!(file, "2026-01-01T00:00:{n:02}.000000Z stdout F line {n}").unwrap();
        }
    }

    fn texts(lines: &[LogLine]) -> Vec<&str> {
        lines.iter().map(|line| line.text.as_str()).collect()
    }

    #[test]
    fn a_line_is_parsed_as_it_was_written() {
        let line = LogLine::parse(b"2026-01-01T00:00:01.5Z stderr P two words \n").unwrap();
        assert_eq!((line.error, line.whole, line.text.as_str()), (true, false, "two words "));
        assert_eq!(LogLine::parse(b"2026-01-01T00:00:01Z stdout F \n").unwrap().text, "");
        assert_eq!(LogLine::parse(b"no log line\n"), None);
    }

    #[tokio::test]
    async fn older_files_come_first_and_the_tail_spans_all_files() {
        let (_dir, logs, folder) = mk_logs();
        write(&folder, 2, 0..2);
        write(&folder, 1, 2..4);
        write(&folder, 0, 4..6);
        let lines = logs.lines(UID, &LogQuery::default()).await.unwrap();
        assert_eq!(texts(&lines), ["line 0", "line 1", "line 2", "line 3", "line 4", "line 5"]);
        let tail = logs.lines(UID, &LogQuery { tail: Some(3), ..LogQuery::default() }).await.unwrap();
        assert_eq!(texts(&tail), ["line 3", "line 4", "line 5"]);
        let since = Some("2026-01-01T00:00:05Z".parse().unwrap());
        let late = logs.lines(UID, &LogQuery { since, ..LogQuery::default() }).await.unwrap();
        assert_eq!(texts(&late), ["line 5"]);
    }

    #[tokio::test]
    async fn the_last_lines_of_ten_gigabytes_are_searched_from_the_end() {
        let (_dir, logs, folder) = mk_logs();
        // A sparse file of that size, then lines: nothing before the lines is read.
        let file = File::create(shim::rotated(&folder, 0)).unwrap();
        file.set_len(10 << 30).unwrap();
        let mut end = File::options().append(true).open(shim::rotated(&folder, 0)).unwrap();
        writeln!(end).unwrap();
        write(&folder, 0, 0..5);
        let tail = LogQuery { tail: Some(2), ..LogQuery::default() };
        assert_eq!(texts(&logs.lines(UID, &tail).await.unwrap()), ["line 3", "line 4"]);
        let mut follow = std::pin::pin!(logs.follow(UID, &LogQuery { tail: Some(0), ..tail }).unwrap());
        write(&folder, 0, 5..6);
        assert_eq!(follow.next().await.unwrap().text, "line 5");
    }

    #[tokio::test]
    async fn a_long_output_is_read_in_parts_and_invalid_lines_are_skipped() {
        let (_dir, logs, folder) = mk_logs();
        let mut file = File::create(shim::rotated(&folder, 0)).unwrap();
        for n in 0..40_000 {
            writeln!(file, "2026-01-01T00:00:00.000000Z stdout F line {n} of a chatty program").unwrap();
        }
        file.write_all(&vec![b'x'; 3 * MAX_READ as usize]).unwrap();
        writeln!(file).unwrap();
        write(&folder, 0, 1..2);
        let lines = logs.lines(UID, &LogQuery::default()).await.unwrap();
        assert_eq!(lines.len(), 40_001);
        assert!(lines[39_999].text.starts_with("line 39999 "), "{:?}", lines[39_999]);
        assert_eq!(lines[40_000].text, "line 1");
    }

    #[tokio::test]
    async fn a_follow_request_misses_nothing_when_files_are_rotated() {
        let (dir, logs, folder) = mk_logs();
        write(&folder, 0, 0..2);
        let mut follow =
            std::pin::pin!(logs.follow(UID, &LogQuery { tail: Some(1), ..LogQuery::default() }).unwrap());
        assert_eq!(follow.next().await.unwrap().text, "line 1");
        write(&folder, 0, 2..3);
        for age in [0, 1] {
            fs::rename(shim::rotated(&folder, 1 - age), shim::rotated(&folder, 2 - age)).unwrap_or_default();
        }
        write(&folder, 0, 3..5);
        fs::rename(shim::rotated(&folder, 1), shim::rotated(&folder, 2)).unwrap();
        fs::rename(shim::rotated(&folder, 0), shim::rotated(&folder, 1)).unwrap();
        write(&folder, 0, 5..6);
        let mut texts = Vec::new();
        for _ in 0..4 {
            texts.push(follow.next().await.unwrap().text);
        }
        assert_eq!(texts, ["line 2", "line 3", "line 4", "line 5"]);
        write(&folder, 0, 6..7);
        drop(dir);
        assert_eq!(follow.next().await.unwrap().text, "line 6", "no last line is lost");
        assert_eq!(follow.next().await, None, "the instance is deleted");
    }

    #[test]
    fn a_request_has_the_parameters_of_kubectl_logs() {
        let now = "2026-01-01T00:01:00Z".parse().unwrap();
        let request = |pairs: &'static [(&str, &str)]| {
            let find =
                |name: &str| pairs.iter().find(|(known, _)| *known == name).map(|(_, v)| (*v).to_owned());
            LogRequest::from_parameters(find, now)
        };
        assert_eq!(request(&[]), Ok(LogRequest::default()));
        let parsed =
            request(&[("container", "app"), ("follow", "true"), ("tailLines", "5"), ("sinceSeconds", "60")]);
        let since = "2026-01-01T00:00:00Z".parse().ok();
        let query = LogQuery { container: Some("app".into()), tail: Some(5), since, previous: false };
        assert_eq!(parsed, Ok(LogRequest { query, follow: true, timestamps: false }));
        assert!(request(&[("previous", "true")]).unwrap().query.previous);
        for (wrong, word) in [
            (&[("tailLines", "-1")][..], "tailLines=-1"),
            (&[("follow", "yes")], "follow=yes"),
            (&[("sinceTime", "yesterday")], "sinceTime=yesterday"),
            (&[("sinceSeconds", "1"), ("sinceTime", "2026-01-01T00:00:00Z")], "give one"),
        ] {
            assert!(request(wrong).unwrap_err().contains(word), "{word}");
        }
    }

    #[tokio::test]
    async fn a_response_has_timestamps_if_requested() {
        let (_dir, logs, folder) = mk_logs();
        write(&folder, 0, 0..2);
        let text = async |request: LogRequest| {
            let parts: Vec<Bytes> = logs.respond(UID, &request).await.unwrap().collect().await;
            String::from_utf8(parts.concat()).unwrap()
        };
        assert_eq!(text(LogRequest::default()).await, "line 0\nline 1\n");
        let stamped = LogRequest {
            timestamps: true,
            query: LogQuery { tail: Some(1), ..LogQuery::default() },
            follow: false,
        };
        assert_eq!(text(stamped).await, "2026-01-01T00:00:01.000000Z line 1\n");
    }

    /// The state file of a run that started at this second.
    fn write_state(folder: &Path, started: u32, previous: Option<u32>, ended: bool) {
        let at = |second: u32| format!("2026-01-01T00:00:{second:02}Z");
        let state = serde_json::json!({
            "shim": 1, "pid": 2, "restarts": 1, "streak": 1, "before": null, "template": "h1", "started": at(started),
            "previous_started": previous.map(at),
            "ending": ended.then(|| serde_json::json!({"at": at(59), "how": {"exit": 1}})),
        });
        fs::write(folder.join("state.json"), state.to_string()).unwrap();
    }

    #[tokio::test]
    async fn the_previous_run_is_the_last_one_that_has_ended() {
        let (_dir, logs, folder) = mk_logs();
        let previous = LogQuery { previous: true, ..LogQuery::default() };
        let read = async |query: LogQuery| {
            let lines = logs.previous(UID, &query).await?.collect::<Vec<_>>().await;
            Ok::<_, LogError>(lines.into_iter().map(|line| line.text).collect::<Vec<_>>())
        };
        write(&folder, 1, 0..4);
        write(&folder, 0, 4..8);
        let none = read(previous.clone()).await.unwrap_err().to_string();
        assert_eq!(none, "container app of instance 0a1b has no previous run: it has not been restarted");
        write_state(&folder, 0, None, false);
        assert!(matches!(read(previous.clone()).await, Err(LogError::NoPreviousRun { .. })));
        // It has exited, and is not started again yet.
        write_state(&folder, 6, Some(2), true);
        assert_eq!(read(previous.clone()).await.unwrap(), ["line 6", "line 7"]);
        write_state(&folder, 6, Some(2), false);
        assert_eq!(read(previous.clone()).await.unwrap(), ["line 2", "line 3", "line 4", "line 5"]);
        let tail = LogQuery { tail: Some(1), ..previous.clone() };
        assert_eq!(read(tail).await.unwrap(), ["line 5"]);
        let since = Some("2026-01-01T00:00:04Z".parse().unwrap());
        assert_eq!(read(LogQuery { since, ..previous.clone() }).await.unwrap(), ["line 4", "line 5"]);
        // A response to a follow request ends as well.
        let request = LogRequest { query: previous, follow: true, timestamps: false };
        let parts: Vec<Bytes> = logs.respond(UID, &request).await.unwrap().collect().await;
        assert_eq!(parts.concat(), b"line 2\nline 3\nline 4\nline 5\n");
    }

    #[tokio::test]
    async fn a_missing_instance_or_container_is_named() {
        let (_dir, logs, folder) = mk_logs();
        fs::create_dir_all(folder.with_file_name("side")).unwrap();
        let missing = logs.lines("other", &LogQuery::default()).await.unwrap_err();
        assert!(matches!(missing, LogError::NoInstance { .. }), "{missing}");
        let escape = logs.lines("../0a1b", &LogQuery::default()).await.unwrap_err();
        assert!(matches!(escape, LogError::NoInstance { .. }), "{escape}");
        let unnamed = logs.lines(UID, &LogQuery::default()).await.unwrap_err().to_string();
        assert!(unnamed.contains("it has app, side"), "{unnamed}");
        // An instance directory without containers: the image is unavailable, or the instance waits for
        // something.
        fs::create_dir_all(folder.parent().unwrap().with_file_name("waiting")).unwrap();
        let waiting = logs.lines("waiting", &LogQuery::default()).await.unwrap_err();
        assert!(matches!(waiting, LogError::NoInstance { .. }), "{waiting}");
        let named = LogQuery { container: Some("app".into()), ..LogQuery::default() };
        assert_eq!(logs.lines(UID, &named).await.unwrap(), []);
    }
}
