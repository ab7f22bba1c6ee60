//! Random histories of writes, checkpoints, aborted checkpoints and crashes, compared with a map.

use proptest::prelude::*;

use super::*;

type Model = BTreeMap<(u16, Vec<u8>), Vec<u8>>;

#[derive(Debug, Clone)]
enum Step {
    /// Changes of (key group, key, new value).
    Write(Vec<(u16, u8, Option<u8>)>),
    /// A checkpoint that completes.
    Checkpoint,
    /// A checkpoint whose files are uploaded and which then fails elsewhere.
    Fail,
    /// A checkpoint that is given up before its upload.
    GiveUp,
    /// The process dies and recovers from the last completed checkpoint.
    Crash,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let change = (0..8u16, 0..20u8, prop::option::weighted(0.8, any::<u8>()));
    let step = prop_oneof![
        5 => prop::collection::vec(change, 1..40).prop_map(Step::Write),
        4 => Just(Step::Checkpoint),
        1 => Just(Step::Fail),
        1 => Just(Step::GiveUp),
        2 => Just(Step::Crash),
    ];
    prop::collection::vec(step, 1..30)
}

async fn run(steps: Vec<Step>) {
    let mut world = World::new();
    let mut state = world.create(ALL);
    let mut model = Model::new();
    let mut completed: Option<(KeyedSnapshot, Model)> = None;
    for step in steps {
        match step {
            Step::Write(changes) => {
                let rows: Vec<_> = changes
                    .iter()
                    .map(|(group, key, value)| (KeyGroup(*group), [*key], value.map(|value| noise(value.into(), 300))))
                    .collect();
                let changes: Vec<_> =
                    rows.iter().map(|(group, key, value)| (*group, &key[..], value.as_deref())).collect();
                table(&state).write(&changes).unwrap();
                for (group, key, value) in changes {
                    match value {
                        Some(value) => model.insert((group.0, key.to_vec()), value.to_vec()),
                        None => model.remove(&(group.0, key.to_vec())),
                    };
                }
            }
            Step::Checkpoint => {
                let snapshot = world.checkpoint(&state).await;
                world.keep_only(&snapshot).await;
                completed = Some((snapshot, model.clone()));
            }
            Step::Fail => {
                world.upload(&state).await;
            }
            Step::GiveUp => drop(state.snapshot(&world.path("staging")).unwrap()),
            Step::Crash => {
                drop(state);
                state = match &completed {
                    Some((snapshot, at)) => {
                        model = at.clone();
                        world.restore(ALL, std::slice::from_ref(snapshot)).await
                    }
                    None => {
                        model.clear();
                        world.create(ALL)
                    }
                };
                assert_eq!(contents(&table(&state)), model);
            }
        }
    }
    assert_eq!(contents(&table(&state)), model);
    let keys: Vec<_> = (0..8u16).flat_map(|group| (0..20u8).map(move |key| (KeyGroup(group), [key]))).collect();
    let asked: Vec<_> = keys.iter().map(|(group, key)| (*group, &key[..])).collect();
    for ((group, key), value) in asked.iter().zip(table(&state).get_many(&asked).unwrap()) {
        assert_eq!(value, model.get(&(group.0, key.to_vec())).cloned());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn a_state_is_a_map_that_survives_crashes(steps in steps()) {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(run(steps));
    }
}
