//! Random histories of writes, checkpoints, aborted checkpoints, crashes and changes of parallelism, compared with a map.

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
    /// The process dies and recovers from the last completed checkpoint, with the key groups shared out at these bounds.
    Crash(Vec<u16>),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let change = (0..8u16, 0..20u8, prop::option::weighted(0.8, any::<u8>()));
    let bounds = prop::collection::btree_set(1..8u16, 0..4)
        .prop_map(|inner| std::iter::once(0).chain(inner).chain([8]).collect::<Vec<_>>());
    let step = prop_oneof![
        5 => prop::collection::vec(change, 1..40).prop_map(Step::Write),
        4 => Just(Step::Checkpoint),
        1 => Just(Step::Fail),
        1 => Just(Step::GiveUp),
        2 => bounds.prop_map(Step::Crash),
    ];
    prop::collection::vec(step, 1..30)
}

/// One state for each range of key groups, as many as there are subtasks.
async fn restored(world: &World, bounds: &[u16], parts: &[KeyedSnapshot]) -> Vec<KeyedState> {
    let mut states = Vec::new();
    for ends in bounds.windows(2) {
        let range = KeyGroupRange { start: ends[0], end: ends[1] };
        let state = if parts.is_empty() { world.create(range) } else { world.restore(range, parts).await };
        states.push(state);
    }
    states
}

fn all_contents(states: &[KeyedState]) -> Model {
    states.iter().flat_map(|state| contents(&table(state))).collect()
}

fn owner(states: &[KeyedState], group: u16) -> &KeyedState {
    states.iter().find(|state| state.range().contains(KeyGroup(group))).unwrap()
}

async fn run(steps: Vec<Step>) {
    let mut world = World::new();
    let mut states = restored(&world, &[0, 8], &[]).await;
    let mut model = Model::new();
    let mut completed: Option<(Vec<KeyedSnapshot>, Model)> = None;
    for step in steps {
        match step {
            Step::Write(changes) => {
                for (group, key, value) in changes {
                    let value = value.map(|value| noise(value.into(), 300));
                    table(owner(&states, group)).write(&[(KeyGroup(group), &[key], value.as_deref())]).unwrap();
                    match value {
                        Some(value) => model.insert((group, vec![key]), value),
                        None => model.remove(&(group, vec![key])),
                    };
                }
            }
            Step::Checkpoint => {
                let mut snapshots = Vec::new();
                for state in &states {
                    snapshots.push(world.checkpoint(state).await);
                }
                world.keep_only_all(&snapshots).await;
                completed = Some((snapshots, model.clone()));
            }
            Step::Fail => {
                for state in &states {
                    world.upload(state).await;
                }
            }
            Step::GiveUp => drop(states[0].snapshot(&world.path("staging")).unwrap()),
            Step::Crash(bounds) => {
                drop(states);
                let (parts, at) = completed.clone().unwrap_or_default();
                model = at;
                states = restored(&world, &bounds, &parts).await;
                assert_eq!(all_contents(&states), model);
            }
        }
    }
    assert_eq!(all_contents(&states), model);
    for state in &states {
        let keys: Vec<_> = state.range().groups().flat_map(|group| (0..20u8).map(move |key| (group, [key]))).collect();
        let asked: Vec<_> = keys.iter().map(|(group, key)| (*group, &key[..])).collect();
        for ((group, key), value) in asked.iter().zip(table(state).get_many(&asked).unwrap()) {
            assert_eq!(value, model.get(&(group.0, key.to_vec())).cloned());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn a_state_is_a_map_that_survives_crashes(steps in steps()) {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(run(steps));
    }
}
