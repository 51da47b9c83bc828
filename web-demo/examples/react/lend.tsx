import { join, type Learner, type LearnerError, type Report } from "@archipelago-train/learner";
import { useEffect, useRef, useState } from "react";

export function useLearner(syncer: string, share: number, on: boolean) {
  const learner = useRef<Learner>(null);
  const asked = useRef(share);
  const [report, setReport] = useState<Report>();
  const [error, setError] = useState<LearnerError>();
  useEffect(() => {
    if (!on) return;
    setError(undefined);
    const joined = join(syncer, { name: "a React app", share: asked.current });
    learner.current = joined;
    const off = joined.on("progress", setReport);
    joined.done.catch(setError);
    return () => {
      off();
      learner.current = null;
      void joined.stop();
    };
  }, [syncer, on]);
  // A changed share does not restart the learner.
  useEffect(() => {
    asked.current = share;
    learner.current?.setShare(share);
  }, [share]);
  return { report, error };
}

export function Lend({ syncer }: { syncer: string }) {
  const [on, setOn] = useState(false);
  const [share, setShare] = useState(0.5);
  const { report, error } = useLearner(syncer, share, on);
  return (
    <>
      <button type="button" onClick={() => setOn(!on)}>
        {on ? "Stop" : "Train along"}
      </button>
      <label>
        How hard
        <input
          type="range"
          min={0.1}
          max={1}
          step={0.1}
          value={share}
          onChange={(event) => setShare(event.target.valueAsNumber)}
        />
      </label>
      <p role="status">
        {error
          ? `Not training: ${error.message}.`
          : on && report
            ? `${report.tokensMerged} tokens merged.`
            : "Nothing computes."}
      </p>
    </>
  );
}
