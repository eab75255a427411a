//! The strict model: every key of the table does what the table says, and files that can't hold are refused in words.

#![expect(clippy::unwrap_used, reason = "tests stop at the first surprise")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use compose_engine::model::expand::Copy;
use compose_engine::model::keys::{self, KEYS, Policy};
use compose_engine::model::{Loader, Project, Source};

/// A folder in which the files that samples name are there.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in ["key", "conf", "Dockerfile"] {
        std::fs::write(folder.path().join(name), "A=b\n").unwrap();
    }
    folder
}

fn load_in(folder: &Path, texts: &[&str]) -> Result<Project, String> {
    let source = |(index, text): (usize, &&str)| Source {
        path: folder.join(format!("f{index}.yml")),
        text: (*text).to_owned(),
    };
    let loader = Loader { sources: texts.iter().enumerate().map(source).collect(), ..Loader::default() };
    loader.load().map_err(|error| error.to_string())
}

fn load(texts: &[&str]) -> Result<Project, String> {
    load_in(folder().path(), texts)
}

/// A file with one key of a place set to its sample.
#[expect(clippy::too_many_lines, reason = "one line for each place of the table")]
fn sample(scope: &str, name: &str, value: &str) -> String {
    let around = |service: &str| {
        format!(
            "services:\n  web:\n    image: img\n    {service}\n  other: {{ image: img }}\n\
             volumes: {{ data: {{}} }}\nsecrets: {{ key: {{ file: ./key }} }}\nconfigs: {{ conf: {{ file: ./conf }} }}\n"
        )
    };
    let one = format!("{name}: {value}");
    match scope {
        "top" => match name {
            "services" => "services: { web: { image: img } }".to_owned(),
            _ => format!("services: {{ web: {{ image: img }} }}\n{one}\n"),
        },
        "service" if name == "image" => format!("services:\n  web: {{ {one} }}\n"),
        "service" => around(&one),
        "service.build" if name == "context" => around(&format!("build: {{ {one} }}")),
        "service.build" => around(&format!("build: {{ context: ., {one} }}")),
        "service.depends_on" => around(&format!("depends_on: {{ other: {{ {one} }} }}")),
        "service.healthcheck" if name == "start_interval" => {
            around(&format!("healthcheck: {{ start_period: 1s, {one} }}"))
        }
        "service.healthcheck" => around(&format!("healthcheck: {{ {one} }}")),
        "service.deploy" => around(&format!("deploy: {{ {one} }}")),
        "service.deploy.resources" => around(&format!("deploy: {{ resources: {{ {one} }} }}")),
        "service.deploy.resources.limits" => {
            around(&format!("deploy: {{ resources: {{ limits: {{ {one} }} }} }}"))
        }
        "service.networks" => format!(
            "{}networks: {{ back: {{ ipam: {{ config: [ {{ subnet: 10.9.0.0/24 }} ] }} }} }}\n",
            around(&format!("networks: {{ back: {{ {one} }} }}"))
        ),
        "service.ports" if name == "target" => around(&format!("ports: [ {{ {one} }} ]")),
        "service.ports" => around(&format!("ports: [ {{ target: 80, {one} }} ]")),
        "service.volumes" => {
            let rest = [("type", "volume"), ("source", "data"), ("target", "/data")];
            let rest: Vec<String> =
                rest.iter().filter(|(key, _)| *key != name).map(|(k, v)| format!("{k}: {v}")).collect();
            around(&format!("volumes: [ {{ {}, {one} }} ]", rest.join(", ")))
        }
        "service.volumes.volume" => around(&format!(
            "volumes: [ {{ type: volume, source: data, target: /data, volume: {{ {one} }} }} ]"
        )),
        "service.volumes.tmpfs" => {
            around(&format!("volumes: [ {{ type: tmpfs, target: /data, tmpfs: {{ {one} }} }} ]"))
        }
        "service.volumes.bind" => {
            around(&format!("volumes: [ {{ type: bind, source: ./key, target: /data, bind: {{ {one} }} }} ]"))
        }
        "service.files" if name == "source" => around(&format!("secrets: [ {{ {one} }} ]")),
        "service.files" => around(&format!("secrets: [ {{ source: key, {one} }} ]")),
        "service.logging" => around(&format!("logging: {{ {one} }}")),
        "service.ulimits" => around("ulimits: { nofile: { soft: 1, hard: 1 }, nproc: { soft: 1, hard: 1 } }"),
        "network" => format!(
            "services: {{ web: {{ image: img, networks: [back] }} }}\nnetworks: {{ back: {{ {one} }} }}\n"
        ),
        "network.ipam" => {
            format!("services: {{ web: {{ image: img }} }}\nnetworks: {{ back: {{ ipam: {{ {one} }} }} }}\n")
        }
        "network.ipam.config" => {
            format!(
                "services: {{ web: {{ image: img }} }}\nnetworks: {{ back: {{ ipam: {{ config: [ {{ {one} }} ] }} }} }}\n"
            )
        }
        "volume" => format!("services: {{ web: {{ image: img }} }}\nvolumes: {{ data: {{ {one} }} }}\n"),
        "file" if name == "file" => {
            format!("services: {{ web: {{ image: img }} }}\nsecrets: {{ key: {{ {one} }} }}\n")
        }
        "file" => {
            format!("services: {{ web: {{ image: img }} }}\nsecrets: {{ key: {{ file: ./key, {one} }} }}\n")
        }
        other => panic!("no sample for {other}"),
    }
}

#[test]
fn every_key_of_the_table_does_what_the_table_says() {
    for key in KEYS {
        let text = sample(key.scope, key.name, key.sample);
        let loaded = load(&[&text]);
        match key.policy {
            Policy::Accept => {
                drop(loaded.unwrap_or_else(|error| panic!("{}.{}: {error}\n{text}", key.scope, key.name)));
            }
            Policy::Warn(words) => {
                let warnings = loaded.unwrap().warnings;
                assert!(warnings.iter().any(|warning| warning.contains(words)), "{}.{}", key.scope, key.name);
            }
            Policy::Reject(hint) => {
                let error = loaded.expect_err(key.name);
                assert!(
                    error.contains(hint) && error.contains("f0.yml:"),
                    "{}.{}: {error}",
                    key.scope,
                    key.name
                );
            }
        }
    }
}

#[test]
fn no_key_stands_twice_in_the_table() {
    let mut seen = std::collections::BTreeSet::new();
    for key in KEYS {
        assert!(seen.insert((key.scope, key.name)), "{}.{}", key.scope, key.name);
    }
}

#[test]
fn an_unknown_key_names_file_line_and_the_nearest_known_key() {
    let error = load(&["services:\n  web:\n    image: img\n    helthcheck: {}\n"]).unwrap_err();
    assert!(
        error.contains("f0.yml:4: unknown key `helthcheck`") && error.contains("`healthcheck`"),
        "{error}"
    );
    // An extension is silent everywhere.
    load(&["x-a: 1\nservices:\n  web: { image: img, x-b: { anything: $UNSET } }\n"]).unwrap();
}

#[test]
fn what_cannot_hold_is_refused_in_words() {
    let table = [
        ("services: { web: { command: x } }", "neither `image` nor `build`"),
        ("services: { web: { image: i, networks: [nope] } }", "not defined"),
        ("services: { web: { image: i, volumes: ['nope:/d'] } }", "not defined"),
        ("services: { web: { image: i, depends_on: [nope] } }", "not defined"),
        ("services: { a: { image: i, depends_on: [b] }, b: { image: i, depends_on: [a] } }", "a -> b -> a"),
        ("services: { web: { image: i, network_mode: host } }", "network_mode"),
        ("services: { web: { image: i, network_mode: none, networks: [default] } }", "exclude"),
        ("services: { web: { image: i, privileged: true } }", "all rights"),
        (
            "services: { web: { image: i, volumes: ['/var/run/docker.sock:/s'] } }",
            "must not reach the engine",
        ),
        ("services: { web: { image: i, labels: { com.docker.compose.project: x } } }", "reserved"),
        ("services: { web: { image: i, labels: [proofload.run=x] } }", "reserved"),
        ("services: { web: { image: i, tmpfs: [/d, /d] } }", "two mounts end at"),
        // Another spelling of a path is the same path.
        ("services: { web: { image: i, tmpfs: [/d, /d/] } }", "two mounts end at"),
        (
            "services: { web: { image: i, volumes: ['/var/run/./docker.sock/:/s'] } }",
            "must not reach the engine",
        ),
        ("services: { web: { image: i, image: j } }", "given twice"),
        ("services: { web: { image: i, pull_policy: daily } }", "not supported"),
        ("services: { web: { image: i, ports: ['1-3:1-3'] } }", "ranges"),
        ("services: { web: { image: i, restart: sometimes } }", "no policy"),
        ("services: { web: { image: i, logging: { driver: syslog } } }", "json-file"),
        ("services: { web: { image: $TAG } }", "TAG has no value"),
        ("services: { web: { image: i, healthcheck: { test: [ls] } } }", "must begin with NONE"),
        ("services: { web: { image: i, healthcheck: { interval: 10us } } }", "below 1ms"),
        ("services: { web: { image: i, healthcheck: { start_interval: 1s } } }", "`start_period` beside it"),
        ("services: { web: { image: i, stop_grace_period: 5 } }", "stop_grace_period"),
        (
            "services: { a: { image: i }, b: { image: i, networks: { default: { aliases: [a] } } } }",
            "leads to",
        ),
        (
            "services: { a: { image: i, healthcheck: { disable: true } }, \
             b: { image: i, depends_on: { a: { condition: service_healthy } } } }",
            "health check is off",
        ),
    ];
    for (text, part) in table {
        let error = load(&[text]).expect_err(text);
        assert!(error.contains(part), "{text}: {error}");
    }
}

#[test]
fn the_default_network_is_there_only_when_a_service_is_in_it() {
    let networks = |text: &str| load(&[text]).unwrap().networks.into_keys().collect::<Vec<_>>();
    assert_eq!(networks("services: { web: { image: i } }"), ["default"]);
    assert_eq!(
        networks("services: { web: { image: i, networks: [back] } }\nnetworks: { back: {} }"),
        ["back"]
    );
    assert!(networks("services: { web: { image: i, network_mode: none } }").is_empty());
}

#[test]
fn static_addresses_are_checked_against_their_subnet() {
    let file = |a: &str, b: &str| {
        format!(
            "services:\n  a: {{ image: i, networks: {{ n: {{ ipv4_address: {a} }} }} }}\n  \
             b: {{ image: i, networks: {{ n: {{ ipv4_address: {b} }} }} }}\n\
             networks: {{ n: {{ ipam: {{ config: [ {{ subnet: 10.9.0.0/24 }} ] }} }} }}\n"
        )
    };
    load(&[&file("10.9.0.5", "10.9.0.6")]).unwrap();
    for (a, b, part) in [
        ("10.9.0.5", "10.9.0.5", "both have"),
        ("10.8.0.5", "10.9.0.6", "no host address"),
        ("10.9.0.1", "10.9.0.6", "gateway"),
        ("10.9.0.255", "10.9.0.6", "no host address"),
    ] {
        let error = load(&[&file(a, b)]).unwrap_err();
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn overlays_merge_by_the_rules_of_each_key() {
    let base = "services:\n  web:\n    image: one\n    command: [a]\n    environment: [A=1, B=2]\n    \
                ports: ['80', '81']\n    volumes: ['data:/d']\n    cap_add: [X]\n    user: u\nvolumes: { data: {}, more: {} }\n";
    let over = "services:\n  web:\n    image: two\n    command: [b, c]\n    environment: { B: '3', C: null }\n    \
                ports: ['80', '82']\n    volumes: ['more:/d']\n    cap_add: [Y]\n    user: !reset null\n";
    let web = load(&[base, over]).unwrap().services.remove("web").unwrap();
    assert_eq!(web.image.as_deref(), Some("two"));
    assert_eq!(web.command.unwrap(), ["b", "c"]);
    let expected: BTreeMap<String, Option<String>> = [("A", Some("1")), ("B", Some("3")), ("C", None)]
        .map(|(key, value)| (key.to_owned(), value.map(str::to_owned)))
        .into();
    assert_eq!(web.environment, expected);
    assert_eq!(web.ports.iter().map(|port| port.target).collect::<Vec<_>>(), [80, 81, 82]);
    assert_eq!(web.mounts.len(), 1);
    assert_eq!(web.host.cap_add, ["X", "Y"]);
    assert_eq!(web.user, None);
    let replaced = load(&[base, "services: { web: { cap_add: !override [Z] } }"]).unwrap();
    assert_eq!(replaced.services["web"].host.cap_add, ["Z"]);
}

#[test]
fn environment_beats_env_file_and_relative_paths_start_at_the_first_file() {
    let folder = folder();
    std::fs::write(folder.path().join("vars"), "# c\nA=file\nB='quoted'\n").unwrap();
    let text = "services: { web: { image: i, env_file: ./vars, environment: { A: own }, volumes: ['./key:/k:ro'] } }";
    let project = load_in(folder.path(), &[text]).unwrap();
    let web = &project.services["web"];
    assert_eq!(web.environment["A"].as_deref(), Some("own"));
    assert_eq!(web.environment["B"].as_deref(), Some("quoted"));
    let bind = format!("{:?}", web.mounts[0].source);
    assert!(bind.contains(folder.path().to_str().unwrap()), "{bind}");
}

#[test]
fn both_forms_of_lists_mean_the_same_and_the_same_line_twice_is_one() {
    let long = "services:\n  web:\n    build: { context: ., args: { A: b } }\n    \
                extra_hosts: { one: 10.0.0.1, two: '[::1]' }\n    ports: ['8080:80']\n\
                networks: { default: { labels: { a: b } } }\n";
    let short = "services:\n  web:\n    build: { context: ., args: [A=b] }\n    \
                 extra_hosts: ['one=10.0.0.1', 'two:::1']\n    ports: ['8080:80', '8080:80']\n\
                 networks: { default: { labels: [a=b] } }\n";
    let (long, short) = (load(&[long]).unwrap(), load(&[short]).unwrap());
    for project in [&long, &short] {
        let web = &project.services["web"];
        assert_eq!(web.build.as_ref().unwrap().args["A"], "b");
        assert_eq!(web.host.extra_hosts, ["one:10.0.0.1", "two:::1"]);
        assert_eq!(web.ports.len(), 1);
        assert_eq!(project.networks["default"].labels["a"], "b");
    }
}

#[test]
fn a_path_means_the_same_however_it_is_spelled() {
    let long = "services:\n  web:\n    build: { context: ./img/ }\n    volumes:\n      \
                - { type: bind, source: ./a/., target: /b/ }\n    tmpfs: ['/c//d:size=1m']\n";
    let short =
        "services:\n  web:\n    build: ./img\n    volumes: ['./a:/./b']\n    tmpfs: ['/c/d/:size=1m']\n";
    let folder = tempfile::tempdir().unwrap();
    let of = |text: &str| {
        let mut web = load_in(folder.path(), &[text]).unwrap().services["web"].clone();
        web.at.line = 0;
        web
    };
    let (long, short) = (of(long), of(short));
    // Paths would compare by their parts; what the engine is told is the text.
    assert_eq!(format!("{long:?}"), format!("{short:?}"));
    assert_eq!(long.mounts.iter().map(|mount| mount.target.as_str()).collect::<Vec<_>>(), ["/b", "/c/d"]);
}

#[test]
fn the_environment_of_the_caller_never_enters() {
    // PATH is set in every test process.
    assert!(load(&["services: { web: { image: 'i:$PATH' } }"]).unwrap_err().contains("PATH has no value"));
}

#[test]
fn a_template_makes_one_service_for_each_member_of_its_group() {
    let text = "services:\n  host:\n    x-each: hosts\n    image: img\n    environment: { NAME: $SELF, KEY: $KEY }\n  \
                web: { image: img, depends_on: { host: { condition: service_started } } }\n";
    let copy = |name: &str, key: &str| Copy {
        name: name.to_owned(),
        variables: BTreeMap::from([("KEY".to_owned(), key.to_owned())]),
    };
    let groups = BTreeMap::from([("hosts".to_owned(), vec![copy("host-0", "a$b"), copy("host-1", "c")])]);
    let source = Source { path: PathBuf::from("/x/f.yml"), text: text.to_owned() };
    let loader = Loader { sources: vec![source], groups, ..Loader::default() };
    let project = loader.load().unwrap();
    assert_eq!(project.services.keys().collect::<Vec<_>>(), ["host-0", "host-1", "web"]);
    assert_eq!(project.services["host-0"].environment["KEY"].as_deref(), Some("a$b"));
    assert_eq!(project.services["host-1"].environment["NAME"].as_deref(), Some("host-1"));
    assert_eq!(project.services["web"].depends_on.keys().collect::<Vec<_>>(), ["host-0", "host-1"]);
    let missing = Loader { groups: BTreeMap::new(), ..loader };
    assert!(missing.load().unwrap_err().to_string().contains("group \"hosts\" is not given"));
}

#[test]
fn profiles_choose_services() {
    let text = "services: { web: { image: i }, load: { image: i, profiles: [load] } }";
    assert_eq!(load(&[text]).unwrap().services.len(), 1);
    let source = Source { path: PathBuf::from("/x/f.yml"), text: text.to_owned() };
    let loader = Loader { sources: vec![source], profiles: vec!["load".to_owned()], ..Loader::default() };
    assert_eq!(loader.load().unwrap().services.len(), 2);
}

#[test]
fn the_conformance_table_in_the_docs_is_the_one_in_the_code() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/compose.md");
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    let (begin, end) = ("<!-- table:begin -->\n", "<!-- table:end -->");
    let table = keys::markdown();
    let (before, rest) = text.split_once(begin).expect("docs/compose.md has no begin mark");
    let (inside, after) = rest.split_once(end).expect("docs/compose.md has no end mark");
    if std::env::var_os("PROOFLOAD_REGENERATE").is_some() {
        std::fs::write(&path, format!("{before}{begin}{table}{end}{after}")).unwrap();
    } else {
        assert_eq!(
            inside, table,
            "PROOFLOAD_REGENERATE=1 cargo test -p compose-engine --test model writes it anew"
        );
    }
}

/// Every text of a Rust file of the workspace, build results apart.
fn sources(folder: &Path, all: &mut String) {
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            sources(&path, all);
        } else if name.ends_with(".rs") {
            all.push_str(&std::fs::read_to_string(&path).unwrap());
        }
    }
}

#[test]
fn every_rule_and_report_in_the_docs_names_tests_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = std::fs::read_to_string(root.join("docs/compose.md")).unwrap();
    let (_, rest) = text.split_once("<!-- proofs:begin -->\n").expect("no begin mark");
    let (table, _) = rest.split_once("<!-- proofs:end -->").expect("no end mark");
    let mut all = String::new();
    sources(&root, &mut all);
    for row in table.lines().skip(2) {
        let tests = row.rsplit_once(" | ").map_or("", |(_, tests)| tests);
        let names: Vec<&str> = tests.split('`').skip(1).step_by(2).collect();
        assert!(!names.is_empty(), "no test: {row}");
        for name in names {
            assert!(all.contains(&format!("fn {name}(")), "there is no test {name}: {row}");
        }
    }
    for number in 1..=50 {
        assert!(table.contains(&format!("| report {number}: ")), "report {number} has no row");
    }
}
