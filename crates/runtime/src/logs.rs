//! Reading what instances have written.
//!
//! Output is kept as files by the shims (see `shim::output` for the form) and read here, by whoever serves it: nobody
//! needs the runtime for that, and a crashed container's words are there as long as its instance is. Following looks at the
//! end of a file a few times a second, only while somebody follows. However long the output is, no more than a piece of it
//! is in memory, and the last lines are found from the end.

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

use crate::process::seat::{self, Facts};
use crate::shim;

/// How often the end of a file is looked at while somebody follows.
const LOOK_AGAIN: Duration = Duration::from_millis(200);
/// Most that one look reads: somebody who follows a very talkative program falls behind by pieces of this.
const PIECE: u64 = 1 << 20;
/// How much is read at a time when the last lines are looked for.
const BLOCK: usize = 64 << 10;

/// Why logs cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// Nothing was ever run for such an instance here, or it is gone.
    #[error(
        "failed to find output of instance {instance}: nothing has run for it on this host, or it is gone"
    )]
    NoInstance {
        /// The instance, as it was asked for.
        instance: String,
    },
    /// The instance has no such container, or several and none was named.
    #[error(
        "failed to find output of {} of instance {instance}: it has {}; name one of them",
        if container.is_empty() { "a container that was not named".to_owned() } else { format!("container {container}") },
        there.join(", ")
    )]
    NoContainer {
        /// The instance.
        instance: String,
        /// The container that was asked for; empty if none was.
        container: String,
        /// The containers that there are.
        there: Vec<String>,
    },
    /// A file could not be read.
    #[error("failed to read output of instance {instance}: {source}")]
    Read {
        /// The instance.
        instance: String,
        /// What the system said.
        source: io::Error,
    },
}

/// What to read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query {
    /// The container; may be left out if the instance has only one.
    pub container: Option<String>,
    /// Only so many of the last lines.
    pub tail: Option<usize>,
    /// Only lines written at this time or later.
    pub since: Option<Timestamp>,
}

/// What somebody asks for over the API, in the words of `kubectl logs`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ask {
    /// What to read.
    pub query: Query,
    /// Whether to go on with what comes.
    pub follow: bool,
    /// Whether each line begins with its time.
    pub timestamps: bool,
}

impl Ask {
    /// Reads the parameters `container`, `follow`, `timestamps`, `tailLines`, `sinceSeconds` and `sinceTime` of a request.
    /// An error says which of them makes no sense.
    pub fn read(parameter: impl Fn(&str) -> Option<String>, now: Timestamp) -> Result<Ask, String> {
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
            (Some(_), Some(_)) => return Err("sinceSeconds and sinceTime: give one of them".to_owned()),
            (Some(seconds), None) => now.checked_sub(SignedDuration::from_secs(seconds.into())).ok(),
            (None, time) => time,
        };
        let tail = number("tailLines")?.map(|lines| lines as usize);
        let container = parameter("container").filter(|name| !name.is_empty());
        let query = Query { container, tail, since };
        Ok(Ask { query, follow: truth("follow")?, timestamps: truth("timestamps")? })
    }
}

/// One line that a program has written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// When it was written.
    pub at: Timestamp,
    /// True if it was written to standard error.
    pub error: bool,
    /// False if the line goes on in the next.
    pub whole: bool,
    /// What was written, without the end of the line; what is not UTF-8 is replaced.
    pub text: String,
}

impl Line {
    /// As `kubectl logs` shows it, with its end; a piece of a longer line has none.
    pub fn shown(&self, timestamp: bool) -> String {
        let time = if timestamp { format!("{:.6} ", self.at) } else { String::new() };
        format!("{time}{}{}", self.text, if self.whole { "\n" } else { "" })
    }

    /// Reads one line of a file; none if it is not in the form of one.
    fn parse(line: &[u8]) -> Option<Line> {
        let mut parts = line.strip_suffix(b"\n").unwrap_or(line).splitn(4, |byte| *byte == b' ');
        let mut head = || std::str::from_utf8(parts.next()?).ok();
        let (at, stream, whole) = (head()?.parse().ok()?, head()?, head()?);
        let text = String::from_utf8_lossy(parts.next()?).into_owned();
        Some(Line { at, error: stream == "stderr", whole: whole == "F", text })
    }
}

/// The output of the instances of one cell.
#[derive(Clone, Debug)]
pub struct Logs {
    dir: PathBuf,
}

impl Logs {
    /// Of the instances that are run in a directory: the one that [`crate::Settings`] names.
    pub fn of(dir: impl Into<PathBuf>) -> Self {
        Logs { dir: dir.into() }
    }

    /// The lines that there are, oldest first.
    pub async fn lines(&self, uid: &str, query: &Query) -> Result<Vec<Line>, LogError> {
        Ok(self.standing(uid, query)?.collect().await)
    }

    /// The lines that there are, oldest first, as they are read.
    pub fn standing(
        &self,
        uid: &str,
        query: &Query,
    ) -> Result<impl Stream<Item = Line> + Send + use<>, LogError> {
        let cursor = self.cursor(uid, query)?;
        let end = cursor.newest().map_err(|source| LogError::Read { instance: uid.to_owned(), source })?;
        let pieces = futures::stream::unfold(Some(cursor), move |cursor| async move {
            let (more, cursor) = cursor?.read().await?;
            // What is written meanwhile is for those who follow, or a talkative program would be read for ever.
            let done = more.is_empty() || end.is_some_and(|end| cursor.is_beyond(end));
            Some((futures::stream::iter(more), (!done).then_some(cursor)))
        });
        Ok(since(query.since, pieces.flatten().take(query.tail.unwrap_or(usize::MAX))))
    }

    /// The lines that there are, and then those that come, until the instance is gone.
    pub fn follow(
        &self,
        uid: &str,
        query: &Query,
    ) -> Result<impl Stream<Item = Line> + Send + use<>, LogError> {
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
                tokio::time::sleep(LOOK_AGAIN).await;
            }
        });
        Ok(since(query.since, pieces.flatten()))
    }

    /// The answer to somebody who asks over the API: text, as it comes.
    pub async fn answer(&self, uid: &str, ask: &Ask) -> Result<BoxStream<'static, Bytes>, LogError> {
        let timestamps = ask.timestamps;
        let show = move |line: Line| Bytes::from(line.shown(timestamps));
        Ok(match ask.follow {
            true => self.follow(uid, &ask.query)?.map(show).boxed(),
            false => self.standing(uid, &ask.query)?.map(show).boxed(),
        })
    }

    fn cursor(&self, uid: &str, query: &Query) -> Result<Cursor, LogError> {
        let folder = self.folder(uid, query)?;
        Cursor::begin(&folder, query.tail)
            .map_err(|source| LogError::Read { instance: uid.to_owned(), source })
    }

    /// The UID of the instance of this name that runs here, if there is one.
    pub fn uid_of(&self, namespace: &str, name: &str) -> Option<String> {
        let facts = Facts::all(&self.dir).ok()?;
        facts
            .into_iter()
            .find(|facts| facts.namespace == namespace && facts.name == name)
            .map(|facts| facts.uid)
    }

    fn folder(&self, uid: &str, query: &Query) -> Result<PathBuf, LogError> {
        let missing = || LogError::NoInstance { instance: uid.to_owned() };
        let seat = seat::folder(&self.dir, uid).ok_or_else(missing)?;
        let there = seat::containers(&seat).map_err(|_| missing())?;
        // A seat without containers is that of an instance whose image cannot be had.
        if !seat.is_dir() || there.is_empty() {
            return Err(missing());
        }
        let wanted = query.container.as_deref();
        let found: Vec<&String> =
            there.iter().filter(|name| wanted.is_none_or(|wanted| wanted == *name)).collect();
        match found.as_slice() {
            [one] => Ok(seat.join(one)),
            _ => Err(LogError::NoContainer {
                instance: uid.to_owned(),
                container: wanted.unwrap_or_default().to_owned(),
                there,
            }),
        }
    }
}

/// Without the lines before the time that was asked for.
fn since(
    since: Option<Timestamp>,
    lines: impl Stream<Item = Line> + Send,
) -> impl Stream<Item = Line> + Send {
    lines.filter(move |line| std::future::ready(since.is_none_or(|since| line.at >= since)))
}

/// Where the text after the last `lines` ends of lines begins; none if the file has fewer, and then `lines` is how many are
/// still to be found in older ones. Read from the end, so that it does not matter how long the file is.
fn from_end(file: &mut File, lines: &mut usize) -> io::Result<Option<u64>> {
    let mut left = *lines + 1; // the end of the line before the first one wanted
    let mut until = file.metadata()?.len();
    let mut block = vec![0; BLOCK];
    while until > 0 {
        let length = until.min(BLOCK as u64);
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

/// A place in the output of a container. A file keeps its inode when it is rotated away.
struct Cursor {
    folder: PathBuf,
    file: Option<u64>,
    at: u64,
}

impl Cursor {
    /// At the first of the last lines; at the oldest line there is, if no number is given.
    fn begin(folder: &Path, tail: Option<usize>) -> io::Result<Self> {
        let mut cursor = Cursor { folder: folder.to_owned(), file: None, at: 0 };
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

    /// The file that is written now, and how long it is.
    fn newest(&self) -> io::Result<Option<(u64, u64)>> {
        match std::fs::metadata(shim::rotated(&self.folder, 0)) {
            Ok(file) => Ok(Some((file.ino(), file.len()))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None), // nothing written yet, or rotated now
            Err(error) => Err(error),
        }
    }

    fn is_beyond(&self, (file, length): (u64, u64)) -> bool {
        self.file == Some(file) && self.at >= length
    }

    /// What was written since, read where waiting for a disk holds up nobody; none if it cannot be read.
    async fn read(mut self) -> Option<(Vec<Line>, Self)> {
        let read = tokio::task::spawn_blocking(move || self.more().ok().map(|more| (more, self)));
        read.await.ok()?
    }

    /// What was written since; at most a piece of it.
    fn more(&mut self) -> io::Result<Vec<Line>> {
        while let Some((mut file, age)) = self.open()? {
            if file.metadata()?.len() < self.at {
                self.at = 0; // begun anew in place
            }
            file.seek(SeekFrom::Start(self.at))?;
            let mut bytes = Vec::new();
            file.take(PIECE).read_to_end(&mut bytes)?;
            let end = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
            if end == 0 && bytes.len() as u64 == PIECE {
                self.at += PIECE; // no line is that long: whoever wrote this was no shim
                continue;
            }
            if end > 0 {
                self.at += end as u64;
                let lines = bytes[..end].split_inclusive(|byte| *byte == b'\n');
                let lines: Vec<Line> = lines.filter_map(Line::parse).collect();
                if !lines.is_empty() {
                    return Ok(lines);
                }
                continue;
            }
            if age == 0 {
                return Ok(Vec::new());
            }
            // The rest of a file that was rotated away is read: on with the next.
            self.file = File::open(shim::rotated(&self.folder, age - 1))?.metadata()?.ino().into();
            self.at = 0;
        }
        Ok(Vec::new())
    }

    /// The file that the place is in, and its age. If it was rotated out of sight, the oldest that is left.
    fn open(&mut self) -> io::Result<Option<(File, u32)>> {
        let mut oldest = None;
        for age in 0.. {
            let file = match File::open(shim::rotated(&self.folder, age)) {
                Ok(file) => file,
                // The one that is written can be missing for a moment, while files are rotated.
                Err(error) if error.kind() == io::ErrorKind::NotFound && age == 0 => continue,
                Err(error) if error.kind() == io::ErrorKind::NotFound => break,
                Err(error) => return Err(error),
            };
            let inode = file.metadata()?.ino();
            if self.file == Some(inode) {
                return Ok(Some((file, age)));
            }
            oldest = Some((file, age, inode));
        }
        let Some((file, age, inode)) = oldest else { return Ok(None) };
        self.file = Some(inode);
        self.at = 0;
        Ok(Some((file, age)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::fs;
    use std::io::Write as _;

    const UID: &str = "0a1b";

    fn mk_logs() -> (tempfile::TempDir, Logs, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join(UID).join("app");
        fs::create_dir_all(&folder).unwrap();
        let logs = Logs::of(dir.path());
        (dir, logs, folder)
    }

    fn write(folder: &Path, age: u32, range: std::ops::Range<u32>) {
        let mut file = File::options().create(true).append(true).open(shim::rotated(folder, age)).unwrap();
        for n in range {
            writeln!(file, "2026-01-01T00:00:{n:02}.000000Z stdout F line {n}").unwrap();
        }
    }

    fn texts(lines: &[Line]) -> Vec<&str> {
        lines.iter().map(|line| line.text.as_str()).collect()
    }

    #[test]
    fn a_line_is_read_as_it_was_written() {
        let line = Line::parse(b"2026-01-01T00:00:01.5Z stderr P two words \n").unwrap();
        assert_eq!((line.error, line.whole, line.text.as_str()), (true, false, "two words "));
        assert_eq!(Line::parse(b"2026-01-01T00:00:01Z stdout F \n").unwrap().text, "");
        assert_eq!(Line::parse(b"no log line\n"), None);
    }

    #[tokio::test]
    async fn older_files_come_first_and_the_tail_is_cut_over_all_of_them() {
        let (_dir, logs, folder) = mk_logs();
        write(&folder, 2, 0..2);
        write(&folder, 1, 2..4);
        write(&folder, 0, 4..6);
        let lines = logs.lines(UID, &Query::default()).await.unwrap();
        assert_eq!(texts(&lines), ["line 0", "line 1", "line 2", "line 3", "line 4", "line 5"]);
        let tail = logs.lines(UID, &Query { tail: Some(3), ..Query::default() }).await.unwrap();
        assert_eq!(texts(&tail), ["line 3", "line 4", "line 5"]);
        let since = Some("2026-01-01T00:00:05Z".parse().unwrap());
        let late = logs.lines(UID, &Query { since, ..Query::default() }).await.unwrap();
        assert_eq!(texts(&late), ["line 5"]);
    }

    #[tokio::test]
    async fn the_last_lines_of_ten_gigabytes_are_found_from_the_end() {
        let (_dir, logs, folder) = mk_logs();
        // A hole as long as that, then lines: nothing before the lines is read.
        let file = File::create(shim::rotated(&folder, 0)).unwrap();
        file.set_len(10 << 30).unwrap();
        let mut end = File::options().append(true).open(shim::rotated(&folder, 0)).unwrap();
        writeln!(end).unwrap();
        write(&folder, 0, 0..5);
        let tail = Query { tail: Some(2), ..Query::default() };
        assert_eq!(texts(&logs.lines(UID, &tail).await.unwrap()), ["line 3", "line 4"]);
        let mut follow = std::pin::pin!(logs.follow(UID, &Query { tail: Some(0), ..tail }).unwrap());
        write(&folder, 0, 5..6);
        assert_eq!(follow.next().await.unwrap().text, "line 5");
    }

    #[tokio::test]
    async fn a_long_output_is_read_in_pieces_and_what_is_no_line_is_passed_by() {
        let (_dir, logs, folder) = mk_logs();
        let mut file = File::create(shim::rotated(&folder, 0)).unwrap();
        for n in 0..40_000 {
            writeln!(file, "2026-01-01T00:00:00.000000Z stdout F line {n} of a program that talks").unwrap();
        }
        file.write_all(&vec![b'x'; 3 * PIECE as usize]).unwrap();
        writeln!(file).unwrap();
        write(&folder, 0, 1..2);
        let lines = logs.lines(UID, &Query::default()).await.unwrap();
        assert_eq!(lines.len(), 40_001);
        assert!(lines[39_999].text.starts_with("line 39999 "), "{:?}", lines[39_999]);
        assert_eq!(lines[40_000].text, "line 1");
    }

    #[tokio::test]
    async fn whoever_follows_misses_nothing_when_files_are_rotated() {
        let (dir, logs, folder) = mk_logs();
        write(&folder, 0, 0..2);
        let mut follow =
            std::pin::pin!(logs.follow(UID, &Query { tail: Some(1), ..Query::default() }).unwrap());
        assert_eq!(follow.next().await.unwrap().text, "line 1");
        write(&folder, 0, 2..3);
        for age in [0, 1] {
            fs::rename(shim::rotated(&folder, 1 - age), shim::rotated(&folder, 2 - age)).unwrap_or_default();
        }
        write(&folder, 0, 3..5);
        fs::rename(shim::rotated(&folder, 1), shim::rotated(&folder, 2)).unwrap();
        fs::rename(shim::rotated(&folder, 0), shim::rotated(&folder, 1)).unwrap();
        write(&folder, 0, 5..6);
        let mut seen = Vec::new();
        for _ in 0..4 {
            seen.push(follow.next().await.unwrap().text);
        }
        assert_eq!(seen, ["line 2", "line 3", "line 4", "line 5"]);
        drop(dir);
        assert_eq!(follow.next().await, None, "the instance is gone");
    }

    #[test]
    fn a_request_is_read_in_the_words_of_kubectl() {
        let now = "2026-01-01T00:01:00Z".parse().unwrap();
        let ask = |pairs: &'static [(&str, &str)]| {
            let find =
                |name: &str| pairs.iter().find(|(known, _)| *known == name).map(|(_, v)| (*v).to_owned());
            Ask::read(find, now)
        };
        assert_eq!(ask(&[]), Ok(Ask::default()));
        let asked =
            ask(&[("container", "app"), ("follow", "true"), ("tailLines", "5"), ("sinceSeconds", "60")]);
        let since = "2026-01-01T00:00:00Z".parse().ok();
        let query = Query { container: Some("app".into()), tail: Some(5), since };
        assert_eq!(asked, Ok(Ask { query, follow: true, timestamps: false }));
        for (wrong, word) in [
            (&[("tailLines", "-1")][..], "tailLines=-1"),
            (&[("follow", "yes")], "follow=yes"),
            (&[("sinceTime", "yesterday")], "sinceTime=yesterday"),
            (&[("sinceSeconds", "1"), ("sinceTime", "2026-01-01T00:00:00Z")], "give one"),
        ] {
            assert!(ask(wrong).unwrap_err().contains(word), "{word}");
        }
    }

    #[tokio::test]
    async fn an_answer_is_text_with_times_if_asked_for() {
        let (_dir, logs, folder) = mk_logs();
        write(&folder, 0, 0..2);
        let text = async |ask: Ask| {
            let parts: Vec<Bytes> = logs.answer(UID, &ask).await.unwrap().collect().await;
            String::from_utf8(parts.concat()).unwrap()
        };
        assert_eq!(text(Ask::default()).await, "line 0\nline 1\n");
        let stamped =
            Ask { timestamps: true, query: Query { tail: Some(1), ..Query::default() }, follow: false };
        assert_eq!(text(stamped).await, "2026-01-01T00:00:01.000000Z line 1\n");
    }

    #[tokio::test]
    async fn what_is_not_there_is_named() {
        let (_dir, logs, folder) = mk_logs();
        fs::create_dir_all(folder.with_file_name("side")).unwrap();
        let missing = logs.lines("other", &Query::default()).await.unwrap_err();
        assert!(matches!(missing, LogError::NoInstance { .. }), "{missing}");
        let escape = logs.lines("../0a1b", &Query::default()).await.unwrap_err();
        assert!(matches!(escape, LogError::NoInstance { .. }), "{escape}");
        let unnamed = logs.lines(UID, &Query::default()).await.unwrap_err().to_string();
        assert!(unnamed.contains("it has app, side"), "{unnamed}");
        // A seat for which nothing has started: its image cannot be had, or it waits for something.
        fs::create_dir_all(folder.parent().unwrap().with_file_name("waiting")).unwrap();
        let waiting = logs.lines("waiting", &Query::default()).await.unwrap_err();
        assert!(matches!(waiting, LogError::NoInstance { .. }), "{waiting}");
        let named = Query { container: Some("app".into()), ..Query::default() };
        assert_eq!(logs.lines(UID, &named).await.unwrap(), []);
    }
}
