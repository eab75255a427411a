//! (prove) Compose files of others as input, with what the reference loader made of each: nothing may be accepted that
//! it refuses, and what both accept must mean the same. How the folders are made is in docs/compose.md.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use compose_engine::model::tree::Place;
use compose_engine::model::{Loader, Project, Source};

/// Variables that both loaders get.
const VARIABLES: [(&str, &str); 3] = [("BAR", "bar"), ("FOO", "foo"), ("TAG", "1")];
/// Parts of our messages that are rules of ours: what they refuse, Compose allows.
const OUR_RULES: [&str; 16] = [
    "is not supported",
    "has no value",
    "reserved",
    "must not reach the engine",
    "ranges",
    "network_mode",
    "leads to",
    "all rights",
    "json-file",
    "two mounts end at",
    "not supported",
    "YAML 1.2",
    "driver",
    "no host address",
    "is not defined",
    "folder of this machine",
];

fn load(dir: &Path, text: &str) -> Result<Project, String> {
    let source = Source { path: dir.join("compose.yaml"), text: text.to_owned() };
    let variables = VARIABLES.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    Loader { sources: vec![source], variables, ..Loader::default() }.load().map_err(|error| error.to_string())
}

/// What the reference's long form says beside what was written: names of a project called `p`, and a swarm's port mode.
fn without_additions(canonical: &str) -> String {
    let added = |line: &&str| {
        let line = line.trim().trim_start_matches("- ");
        !line.starts_with("name: p_") && line != "mode: ingress"
    };
    let lines = canonical.replace("- mode: ingress\n", "-\n");
    lines.lines().filter(added).collect::<Vec<_>>().join("\n").replace('$', "$$")
}

/// What a project means, without where its parts stand and in which order sets are written.
fn meaning(mut project: Project) -> String {
    let nowhere = Place { file: "".into(), line: 0 };
    let mut used = BTreeSet::new();
    for service in project.services.values_mut() {
        service.at = nowhere.clone();
        service.host.ulimits.sort();
        service.host.extra_hosts.sort();
        used.extend(service.networks.keys().cloned());
    }
    project.networks.retain(|key, _| used.contains(key));
    project.networks.values_mut().for_each(|network| network.at = None);
    format!("{:#?}{:#?}", project.services, project.networks)
        .replace("/./", "/")
        .replace("/.\"", "\"")
        .replace("/\"", "\"")
}

#[test]
#[ignore = "prove: needs a folder of Compose files and of what the reference loader made of them"]
fn files_of_others_are_read_as_the_reference_reads_them_or_refused_in_words() {
    let root =
        PathBuf::from(std::env::var_os("COMPOSE_CONFORMANCE").expect("COMPOSE_CONFORMANCE names the folder"));
    let (inputs, oracle) = (root.join("in"), root.join("oracle"));
    let mut outcomes: BTreeMap<String, u32> = BTreeMap::new();
    let mut wrong = Vec::new();
    let list = std::fs::read_dir(&inputs).expect("the folder `in`").flatten();
    let mut files: Vec<PathBuf> = list.map(|entry| entry.path()).collect();
    files.sort();
    for file in files.iter().filter(|file| file.extension().is_some_and(|end| end == "yaml")) {
        let name = file.file_stem().expect("a file").to_string_lossy().into_owned();
        let text = std::fs::read_to_string(file).expect("a text");
        let canonical = std::fs::read_to_string(oracle.join(format!("{name}.out"))).ok();
        let outcome = match (load(&inputs, &text), canonical) {
            (Ok(_), None) => {
                let error = std::fs::read_to_string(oracle.join(format!("{name}.err"))).unwrap_or_default();
                wrong.push(format!("{name}: accepted, the reference says {error}"));
                "accepted, refused by the reference".to_owned()
            }
            (Ok(project), Some(canonical)) => match load(&inputs, &without_additions(&canonical)) {
                Ok(again) if meaning(again.clone()) == meaning(project.clone()) => {
                    "accepted, same meaning".to_owned()
                }
                Ok(again) => {
                    let (ours, theirs) = (meaning(project), meaning(again));
                    let differs = ours.lines().zip(theirs.lines()).find(|(one, other)| one != other);
                    wrong.push(format!("{name}: another meaning: {differs:?}"));
                    "accepted, another meaning".to_owned()
                }
                Err(error) => {
                    wrong.push(format!("{name}: accepted, its long form is refused: {error}"));
                    "accepted, long form refused".to_owned()
                }
            },
            (Err(error), Some(_)) => {
                println!("{name}\trefused, accepted by the reference\t{error}");
                let rule = OUR_RULES.iter().find(|rule| error.contains(**rule));
                format!("refused by a rule of ours: {}", rule.copied().unwrap_or("OTHER"))
            }
            (Err(_), None) => "refused by both".to_owned(),
        };
        *outcomes.entry(outcome).or_default() += 1;
    }
    outcomes.iter().for_each(|(outcome, count)| println!("{count:>5}  {outcome}"));
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}
