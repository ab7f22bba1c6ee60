//! The task loop: takes messages from channels, runs them through a chain, sends on what comes out.
//!
//! ```text
//!   recovered rows, then inbox ──► aligner ──► chain ──► edges or sink
//!                            │
//!                            └ overtaking: a barrier that was announced may be acted upon between any two messages
//! ```

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use weir_storage::CheckpointWriter;

use crate::alignment::overtaking::{Act, Overtaking};
use crate::alignment::{Aligner, Mark, Settled};
use crate::channel::Inbox;
use crate::error::{Result, internal};
use crate::in_flight::InFlight;
use crate::message::{Alignment, Barrier, Chunk, Message};
use crate::run::{Control, TaskEvent};
use crate::task::Task;
use crate::time::InputTimes;
use crate::upload::PendingSnapshotOf;

/// A snapshot for which rows in flight are still being noted.
struct Taken {
    writer: CheckpointWriter,
    snapshot: PendingSnapshotOf,
    /// Rows in flight by channel.
    rows: Vec<Vec<Chunk>>,
}

/// A task that reads channels.
pub(crate) struct ProcessTask {
    task: Task,
    inbox: Inbox,
    control: mpsc::UnboundedReceiver<Control>,
    aligner: Aligner,
    overtaking: Overtaking,
    taken: Option<Taken>,
    times: InputTimes,
    ended: Vec<bool>,
}

/// Why the loop goes on.
enum Step {
    Control(Option<Control>),
    /// What comes after has room, or is ready.
    Freed,
    /// Something arrived, or it is time to overtake.
    Look,
}

impl ProcessTask {
    /// `overtakable`: for each channel of the inbox, whether barriers may overtake on it.
    pub(crate) fn new(
        task: Task,
        inbox: Inbox,
        overtakable: Vec<bool>,
        control: mpsc::UnboundedReceiver<Control>,
    ) -> Self {
        let channels = inbox.channels().len();
        let (aligner, times, overtaking) =
            (Aligner::new(channels), InputTimes::new(channels), Overtaking::new(overtakable));
        Self { task, inbox, control, aligner, overtaking, taken: None, times, ended: vec![false; channels] }
    }

    /// Runs until cancelled.
    pub(crate) async fn run(mut self) -> Result<()> {
        loop {
            self.look();
            // After the look: what completed before a checkpoint was triggered is known before its snapshot is taken.
            while let Ok(control) = self.control.try_recv() {
                self.on_control(control)?;
            }
            if !self.overtaking.is_idle() {
                self.overtake().await?;
            }
            if !(self.task.may_take() && self.take().await?) {
                match self.wait().await? {
                    Step::Control(Some(control)) => self.on_control(control)?,
                    // The driver is gone: the run is over.
                    Step::Control(None) => return Ok(()),
                    Step::Freed => self.task.write().await?,
                    Step::Look => {}
                }
            }
            // A task whose inputs never run dry must let others run, and notice that it was cancelled.
            tokio::task::coop::consume_budget().await;
        }
    }

    async fn wait(&mut self) -> Result<Step> {
        let held_back = !self.task.may_take();
        let due = self.overtaking.wake_at();
        let since = Instant::now();
        let step = tokio::select! {
            control = self.control.recv() => Step::Control(control),
            freed = self.task.freed(), if held_back => {
                freed?;
                Step::Freed
            }
            () = self.inbox.arrived() => Step::Look,
            () = async {
                match due {
                    Some(due) => tokio::time::sleep_until(due.into()).await,
                    None => std::future::pending().await,
                }
            } => Step::Look,
        };
        self.task.count_wait(held_back, since.elapsed());
        Ok(step)
    }

    /// Takes up one message. Answers whether there was one.
    async fn take(&mut self) -> Result<bool> {
        if let Some((channel, chunk)) = self.task.recovered.pop_front() {
            self.task.recover(channel, chunk)?;
            return Ok(true);
        }
        let (aligner, overtaking) = (&self.aligner, &self.overtaking);
        let blocked = |channel| aligner.is_blocked(channel) || overtaking.is_blocked(channel);
        match self.inbox.try_receive(blocked) {
            Some((channel, message)) => self.on_message(channel, message).await.map(|()| true),
            None => Ok(false),
        }
    }

    fn on_control(&mut self, control: Control) -> Result<()> {
        match control {
            Control::Completed(checkpoint) => self.task.completed(checkpoint),
            Control::Aborted(checkpoint) => {
                self.overtaking.abort(checkpoint);
                self.taken.take_if(|taken| taken.snapshot.checkpoint == checkpoint);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    async fn on_message(&mut self, channel: usize, message: Message) -> Result<()> {
        let chain = &mut self.task.chain;
        match message {
            Message::Data(chunk) => {
                if self.overtaking.is_watched(channel)
                    && let Some(taken) = &mut self.taken
                {
                    taken.rows[channel].push(chunk.clone());
                }
                self.times.active(channel);
                let input = self.inbox.channels()[channel].id().input;
                chain.batch(input, chunk)?;
            }
            Message::Watermark(watermark) => {
                if let Some(progress) = self.times.watermark(channel, watermark) {
                    chain.progress(progress)?;
                }
            }
            Message::Idle => {
                self.times.idle(channel).into_iter().flatten().try_for_each(|progress| chain.progress(progress))?;
            }
            Message::End => {
                let all_ended = !std::mem::replace(&mut self.ended[channel], true) && self.ended.iter().all(|e| *e);
                if all_ended {
                    self.times.end().into_iter().try_for_each(|progress| chain.progress(progress))?;
                    chain.end()?;
                }
            }
            Message::Epoch(epoch) => return self.on_mark(channel, Mark::Epoch(epoch)).await,
            Message::Barrier(barrier) if barrier.alignment == Alignment::Unaligned => {
                self.sight(channel, barrier, Overtaking::arrived);
                return Ok(());
            }
            Message::Barrier(barrier) => return self.on_mark(channel, Mark::Barrier(barrier)).await,
        }
        self.task.drain()
    }

    async fn on_mark(&mut self, channel: usize, mark: Mark) -> Result<()> {
        if let Mark::Barrier(barrier) = mark {
            self.trace(channel, barrier, "barrier");
        }
        for settled in self.aligner.arrive(channel, mark, Instant::now()) {
            match settled {
                Settled::Complete { mark, alignment } => self.task.mark(mark, alignment, || Ok(None)).await?,
                Settled::Superseded { mark: Mark::Barrier(barrier) } => {
                    let reason = format!("a later mark overtook its barrier at task \"{}\"", self.task.name);
                    let (checkpoint, task) = (barrier.checkpoint, self.task.id);
                    self.task.run.tell(TaskEvent::Declined { checkpoint, task, reason });
                }
                Settled::Superseded { mark: Mark::Epoch(_) } => {}
            }
        }
        Ok(())
    }

    fn trace(&self, channel: usize, barrier: Barrier, what: &str) {
        let (query, task) = (&self.task.run.query, &self.task.name);
        let channel = self.inbox.channels()[channel].id();
        tracing::trace!(%query, checkpoint = %barrier.checkpoint, %task, %channel, "{what}");
    }

    /// A barrier that may overtake is known of. One whose checkpoint is over is of no interest to anybody.
    fn sight(
        &mut self,
        channel: usize,
        barrier: Barrier,
        what: impl FnOnce(&mut Overtaking, usize, Barrier, Instant, Instant),
    ) {
        self.trace(channel, barrier, "barrier that may overtake");
        if let Some(overtakes_at) = self.task.run.overtakes_at(barrier.checkpoint) {
            what(&mut self.overtaking, channel, barrier, overtakes_at, Instant::now());
        }
    }

    /// Takes note of barriers that may overtake.
    fn look(&mut self) {
        for (channel, barrier) in self.inbox.announced() {
            self.sight(channel, barrier, Overtaking::announced);
        }
    }

    /// Acts on the barrier that may overtake.
    async fn overtake(&mut self) -> Result<()> {
        while let Some(act) = self.overtaking.next(Instant::now()) {
            match act {
                Act::Snapshot(barrier) => match self.task.overtake(barrier, || Ok(None)).await? {
                    Some((writer, snapshot)) => {
                        let rows = vec![Vec::new(); self.inbox.channels().len()];
                        self.taken = Some(Taken { writer, snapshot, rows });
                    }
                    None => self.overtaking.abort(barrier.checkpoint),
                },
                Act::Overtake { channel, checkpoint } => {
                    let Some(rows) = self.inbox.overtake(channel, checkpoint) else {
                        return Err(internal("unaligned checkpoint", "an announced barrier is not in its channel"));
                    };
                    if let Some(taken) = &mut self.taken {
                        taken.rows[channel].extend(rows);
                    }
                }
                Act::Complete { alignment, .. } => self.upload(alignment),
            }
        }
        Ok(())
    }

    /// All rows in flight are known: the rest runs in the background.
    fn upload(&mut self, alignment: Duration) {
        let Some(Taken { writer, mut snapshot, rows }) = self.taken.take() else { return };
        snapshot.alignment = alignment;
        for (channel, chunks) in self.inbox.channels().iter().zip(rows) {
            if !chunks.is_empty() {
                snapshot.in_flight.push(InFlight { channel: channel.id(), chunks });
            }
        }
        let run = &self.task.run;
        run.upload(snapshot.upload(writer, Arc::clone(run)));
    }
}
