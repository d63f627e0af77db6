//! Tests of the verbs on a terminal of 80 columns, in a pipe, and with JSON and YAML output.

use std::process::Command;

use crate::installation::Installation;

/// Verbs that print objects, in all their forms.
const READ_VERBS: [&str; 9] = [
    "workloads",
    "instances",
    "instances web",
    "status web",
    "cities",
    "quota",
    "projects",
    "rollout history web",
    "version",
];

/// The lines of terminal output without colours and cursor movements; a carriage return starts a new line.
fn visible_lines(text: &str) -> Vec<String> {
    let mut plain = String::new();
    let mut rest = text.chars().peekable();
    while let Some(letter) = rest.next() {
        match (letter, rest.peek()) {
            ('\u{1b}', Some('[')) => {
                rest.next();
                while rest.next().is_some_and(|letter| !letter.is_ascii_alphabetic()) {}
            }
            ('\u{1b}', _) => {}
            ('\r', _) => plain.push('\n'),
            _ => plain.push(letter),
        }
    }
    plain.lines().map(str::to_owned).collect()
}

/// The output on a terminal of 80 columns; `None` if no terminal is available.
fn run_on_terminal(installation: &Installation, line: &str) -> Option<String> {
    run_with_answer(installation, line, "").map(|(output, _)| output)
}

/// The same with an answer to a prompt; returns output and exit code.
fn run_with_answer(installation: &Installation, line: &str, answer: &str) -> Option<(String, i32)> {
    let command = format!("stty cols 80 rows 24; exec {} {line}", env!("CARGO_BIN_EXE_polis"));
    let stdin = installation.write("answer", answer);
    let output = Command::new("script")
        .args(["-q", "-e", "-c", &command, "/dev/null"])
        .stdin(std::fs::File::open(stdin).expect("an answer"))
        .current_dir(installation.dir())
        .env_remove("KUBECONFIG")
        .env("HOME", installation.dir())
        .env("POLIS_DATA_DIR", installation.dir())
        .env("TERM", "xterm")
        .output();
    match output {
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            Some((text, output.status.code().unwrap_or_default()))
        }
        Err(error) => {
            eprintln!("skipped, no terminal available: {error}");
            None
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn terminal_output_fits_80_columns_and_piped_output_has_no_escape_codes() {
    let installation = Installation::new().await;
    let long = "deploy web --image polis.local/hello --city dfw --city ord --replicas 2 --port http=8080";
    installation.polis(long).await.ok();
    let wide = ["workloads -o wide", "instances -o wide", "status web -o wide", "cities -o wide"];
    let verbs = READ_VERBS.into_iter().chain(["why web", "doctor"]).chain(wide);
    for verb in verbs {
        let piped = installation.polis(verb).await;
        assert!(!piped.stdout.contains('\u{1b}') && !piped.stderr.contains('\u{1b}'), "{verb}: {piped:?}");
        let Some(shown) = run_on_terminal(&installation, verb) else { return };
        assert_fits(verb, &shown);
        if verb.starts_with("instances") || verb.starts_with("status") {
            assert!(shown.contains("127.1.0.1:8080"), "the address is not cut: {shown}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_line_that_is_wider_than_the_terminal_is_wrapped() {
    let installation = Installation::new().await;
    let name = "a-name-that-is-long-enough-to-wrap-a-line";
    installation.polis(&format!("deploy {name} --image polis.local/hello --city dfw --city ord")).await.ok();
    let verb = format!("destroy {name} --yes");
    let Some(shown) = run_on_terminal(&installation, &verb) else { return };
    assert_fits(&verb, &shown);
}

#[tokio::test(flavor = "multi_thread")]
async fn on_a_terminal_changes_and_deletions_need_a_confirmation_with_yes() {
    let installation = Installation::new().await;
    installation.polis("deploy web --image polis.local/hello --city dfw").await.ok();
    let image = async || {
        let web = installation.polis("status web -o json").await.json();
        web["spec"]["template"]["spec"]["runtime"]["sandbox"]["containers"][0]["image"].clone()
    };
    let change = "deploy web --image polis.local/sleep";
    for no in ["n\n", "\n", "nein\n"] {
        let Some((output, code)) = run_with_answer(&installation, change, no) else { return };
        assert!(output.contains("image: polis.local/sleep"), "the diff is printed first: {output}");
        assert!(
            output.contains("Apply the change? [y/N]") && output.contains("nothing was changed"),
            "{output}"
        );
        assert_eq!((code, image().await), (8, "polis.local/hello".into()), "{no:?}");
    }
    let (output, code) = run_with_answer(&installation, change, "y\n").expect("a terminal");
    assert_eq!((code, image().await), (0, "polis.local/sleep".into()), "{output}");
    let (output, code) = run_with_answer(&installation, "destroy web", "n\n").expect("a terminal");
    assert!(code == 8 && output.contains("Delete it? [y/N]"), "{output}");
    installation.polis("status web").await.ok();
    let (output, code) = run_with_answer(&installation, "destroy web", "yes\n").expect("a terminal");
    assert!(code == 0 && output.contains("workload web is gone"), "{output}");
}

#[tokio::test(flavor = "multi_thread")]
async fn escape_sequences_of_workloads_do_not_reach_the_terminal() {
    let installation = Installation::new().await;
    installation.polis("deploy hostile --image polis.local/hello --city dfw").await.ok();
    installation.polis("deploy blocked --image nginx-hostile --city dfw --no-wait").await.ok();
    let logs = "logs hostile --context with-logs";
    let piped = installation.polis(logs).await.ok();
    assert!(piped.ends_with("\u{1b}[2Jcleared\n"), "a pipe gets the log unchanged: {piped:?}");
    let verbs = [
        (logs, "^[[2Jcleared"),
        ("status blocked", "^[[2J^[]0;title^Gno registry"),
        ("instances blocked -o wide", "^[[2J"),
        ("why blocked", "^[[2J^[]0;title^Gno registry"),
        ("deploy blocked --image nginx-hostile --yes --timeout 1s", "^[[2J"),
    ];
    for (verb, expected) in verbs {
        let Some(output) = run_on_terminal(&installation, verb) else { return };
        assert!(output.contains(expected), "{verb}: {output:?}");
        assert!(!output.contains("\u{1b}[2J") && !output.contains("\u{1b}]0;"), "{verb}: {output:?}");
    }
}

/// Asserts that the output is not empty and that no line is longer than 80 columns.
fn assert_fits(verb: &str, shown: &str) {
    let lines = visible_lines(shown);
    assert!(lines.iter().any(|line| !line.trim().is_empty()), "{verb} prints nothing");
    // URLs are never cut, because users copy them.
    let longest = lines
        .iter()
        .filter(|line| !line.contains("://"))
        .max_by_key(|line| line.chars().count())
        .cloned()
        .unwrap_or_default();
    assert!(longest.trim_end().chars().count() <= 80, "{verb}: {longest:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_read_verb_supports_json_and_yaml() {
    let installation = Installation::new().await;
    installation
        .polis("deploy web --image polis.local/hello --city dfw --city ord --port http=8080")
        .await
        .ok();
    for verb in READ_VERBS.into_iter().chain(["why web"]) {
        let json = installation.polis(&format!("{verb} -o json")).await.json();
        assert!(json.is_object() || json.is_array(), "{verb}: {json}");
        let yaml = installation.polis(&format!("{verb} -o yaml")).await.ok();
        let yaml: serde_json::Value = serde_saphyr::from_str(&yaml).expect("YAML");
        assert_eq!(yaml.is_object(), json.is_object(), "{verb}");
    }
}
