//! The verbs at a terminal of 80 columns and in a pipe, and what programs read of them.

use std::process::Command;

use crate::world::World;

/// Verbs that show something, each with every form that it has.
const SHOWN: [&str; 9] = [
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

/// What a line looks like: colours and movements of the cursor take no room, and a carriage return begins it anew.
fn seen(text: &str) -> Vec<String> {
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

/// What a person sees who types this at a terminal of 80 columns; none where no terminal can be had.
fn typed(world: &World, line: &str) -> Option<String> {
    answered(world, line, "").map(|(seen, _)| seen)
}

/// The same for one who answers a question, and the code that it ends with.
fn answered(world: &World, line: &str, answer: &str) -> Option<(String, i32)> {
    let typed = format!("stty cols 80 rows 24; exec {} {line}", env!("CARGO_BIN_EXE_polis"));
    let keyboard = world.write("answer", answer);
    let output = Command::new("script")
        .args(["-q", "-e", "-c", &typed, "/dev/null"])
        .stdin(std::fs::File::open(keyboard).expect("an answer"))
        .current_dir(world.dir())
        .env_remove("KUBECONFIG")
        .env("HOME", world.dir())
        .env("POLIS_DATA_DIR", world.dir())
        .env("TERM", "xterm")
        .output();
    match output {
        Ok(output) => {
            let seen = String::from_utf8_lossy(&output.stdout).into_owned();
            Some((seen, output.status.code().unwrap_or_default()))
        }
        Err(error) => {
            eprintln!("skipped, no terminal can be had: {error}");
            None
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn at_a_terminal_of_80_columns_no_line_is_longer_and_in_a_pipe_there_is_neither_colour_nor_spinner() {
    let world = World::new().await;
    let long = "deploy web --image polis.local/hello --city dfw --city ord --replicas 2 --port http=8080";
    world.polis(long).await.ok();
    let wide = ["workloads -o wide", "instances -o wide", "status web -o wide", "cities -o wide"];
    let verbs = SHOWN.into_iter().chain(["why web", "doctor"]).chain(wide);
    for verb in verbs {
        let piped = world.polis(verb).await;
        assert!(!piped.stdout.contains('\u{1b}') && !piped.stderr.contains('\u{1b}'), "{verb}: {piped:?}");
        let Some(shown) = typed(&world, verb) else { return };
        fits(verb, &shown);
        if verb.starts_with("instances") || verb.starts_with("status") {
            assert!(shown.contains("127.1.0.1:8080"), "an address can be copied: {shown}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sentence_that_is_too_long_for_the_terminal_is_folded() {
    let world = World::new().await;
    let name = "a-name-that-leaves-a-sentence-little-room";
    world.polis(&format!("deploy {name} --image polis.local/hello --city dfw --city ord")).await.ok();
    let verb = format!("destroy {name} --yes");
    let Some(shown) = typed(&world, &verb) else { return };
    fits(&verb, &shown);
}

#[tokio::test(flavor = "multi_thread")]
async fn at_a_terminal_a_change_and_an_end_are_asked_about_and_only_a_yes_is_one() {
    let world = World::new().await;
    world.polis("deploy web --image polis.local/hello --city dfw").await.ok();
    let image = async || {
        let web = world.polis("status web -o json").await.json();
        web["spec"]["template"]["spec"]["runtime"]["sandbox"]["containers"][0]["image"].clone()
    };
    let change = "deploy web --image polis.local/sleep";
    for no in ["n\n", "\n", "nein\n"] {
        let Some((seen, code)) = answered(&world, change, no) else { return };
        assert!(seen.contains("image: polis.local/sleep"), "the difference is shown first: {seen}");
        assert!(seen.contains("Change it? [y/N]") && seen.contains("nothing was changed"), "{seen}");
        assert_eq!((code, image().await), (8, "polis.local/hello".into()), "{no:?}");
    }
    let (seen, code) = answered(&world, change, "y\n").expect("a terminal");
    assert_eq!((code, image().await), (0, "polis.local/sleep".into()), "{seen}");
    let (seen, code) = answered(&world, "destroy web", "n\n").expect("a terminal");
    assert!(code == 8 && seen.contains("Delete it? [y/N]"), "{seen}");
    world.polis("status web").await.ok();
    let (seen, code) = answered(&world, "destroy web", "yes\n").expect("a terminal");
    assert!(code == 0 && seen.contains("workload web is gone"), "{seen}");
}

/// Says something, and nothing beyond the 80th column.
fn fits(verb: &str, shown: &str) {
    let lines = seen(shown);
    assert!(lines.iter().any(|line| !line.trim().is_empty()), "{verb} shows nothing");
    // An address is not cut: whoever copies it wants all of it.
    let longest = lines
        .iter()
        .filter(|line| !line.contains("://"))
        .max_by_key(|line| line.chars().count())
        .cloned()
        .unwrap_or_default();
    assert!(longest.trim_end().chars().count() <= 80, "{verb}: {longest:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_is_shown_is_json_and_yaml_for_programs_that_ask() {
    let world = World::new().await;
    world.polis("deploy web --image polis.local/hello --city dfw --city ord --port http=8080").await.ok();
    for verb in SHOWN.into_iter().chain(["why web"]) {
        let json = world.polis(&format!("{verb} -o json")).await.json();
        assert!(json.is_object() || json.is_array(), "{verb}: {json}");
        let yaml = world.polis(&format!("{verb} -o yaml")).await.ok();
        let yaml: serde_json::Value = serde_saphyr::from_str(&yaml).expect("YAML");
        assert_eq!(yaml.is_object(), json.is_object(), "{verb}");
    }
}
