//! Documentation that is made from the code is current. `WEIR_UPDATE_DOCS=1 cargo test … docs` writes it anew.

use weir_tests::root;

fn check(file: &str, current: &str) {
    let path = root().join("docs").join(file);
    if std::env::var_os("WEIR_UPDATE_DOCS").is_some() {
        std::fs::write(&path, current).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == current,
        "docs/{file} is not current: run WEIR_UPDATE_DOCS=1 cargo test --release -p weir-tests docs"
    );
}

#[test]
fn the_configuration_reference_is_current() {
    let mut text = String::from(
        "# Configuration\n\n\
         Options are given in a YAML file (`weir serve --config weir.yaml`, keys nested or dotted: a `flink-conf.yaml` will do), with\n\
         `SET 'name' = 'value'` for a connection and the queries created on it, or in `WITH (…)` of one query. A query keeps the\n\
         options that it was created with. Names, units and meanings are Flink's where Flink has the option; what differs is said.\n\
         Unknown names are refused with the nearest known one, and combinations that cannot hold with the reason.\n\n\
         This page is made from the tables in `planner/src/options`.\n\n\
         | option | default | unit or values | meaning | what differs from Flink |\n| --- | --- | --- | --- | --- |\n",
    );
    for option in weir_planner::options::OPTIONS {
        let scope = match option.scope {
            weir_planner::options::Scope::Query => "",
            weir_planner::options::Scope::Server => " Server only: configuration file.",
        };
        let available = if option.is_available() {
            ""
        } else {
            " **In this version only the default has an effect; other values are refused.**"
        };
        let values = match option.kind {
            weir_planner::options::Kind::Enum(values) => values.join(", "),
            _ => option.unit().to_owned(),
        };
        let default = if option.default.is_empty() { String::new() } else { format!("`{}`", option.default) };
        let (name, doc, differs) = (option.name, option.doc, option.difference().unwrap_or_default());
        text.push_str(&format!("| `{name}` | {default} | {values} | {doc}{scope}{available} | {differs} |\n"));
    }
    check("configuration.md", &text);
}

#[test]
fn the_connector_reference_is_current() {
    let text = format!(
        "# Connectors\n\nThis page is made from the tables in `connectors/src`. `CREATE STREAM … WITH (connector = 'name', …)` reads, \
         `CREATE SINK … WITH (connector = 'name', …)` writes.\n\nA stream declared without a connector, or with `connector = 'http'`, is \
         Weir's own log: INSERT and `POST /v1/streams/NAME` append to it, and are acknowledged when the rows are durable.\n{}",
        weir_connectors::documentation()
    );
    check("connectors.md", &text);
}
