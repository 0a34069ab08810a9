from holdfast import App, StepFailed, gather, sleep, wait_for

app = App("shop")                        # or App("shop", url="sqlite:///path/to/jobs.db")

@app.step(retries=2)
async def stock(sku: str) -> int:
    return 7

@app.tool
async def charge(card: str, cents: int) -> str:
    return f"receipt for {cents} cents"

@app.job
async def notify(text: str) -> str:
    return f"told: {text}"

@app.job
async def checkout(sku: str, card: str) -> str:
    here, there = await gather(stock(sku), stock(f"{sku}-warehouse"))
    receipt = await charge(card, 100 * (here + there))
    await sleep(0.01)                            # survives restarts and deploys, for days if needed
    return await notify(receipt)                 # another job, as a child

if __name__ == "__main__":                       # every process that imports the file would start a run
    run = checkout.start("A1", card="4242")
    app.worker().run(until_idle=True)
    print(run.result())                          #> told: receipt for 1400 cents
    print(run.record().status)                   #> succeeded

@app.job
async def approval(text: str) -> str:
    answer = await wait_for("answer", timeout="3d")
    return f"{text}: {answer}"

run = approval.start("ship it?")
app.worker().run(until_idle=True)
print(run.record().stage)                        #> parked
run.signal("answer", "yes")                      # stored, even if it arrives before the wait
app.worker().run(until_idle=True)
print(run.result())                              #> ship it?: yes

@app.step
async def flaky() -> None:
    raise ConnectionError("the supplier is down")

@app.job
async def careful() -> str:
    try:
        await flaky()
    except StepFailed as failure:
        return f"went on without: {failure.reason}"
    return "fine"

run = careful.start()
app.worker().run(until_idle=True)
print(run.result())                              #> went on without: the supplier is down
