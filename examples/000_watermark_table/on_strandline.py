"""The same on Strandline: the plan, its windows and the watermarks are kept for you; reading and writing are yours."""

import strandline


def job(spark, state, lake, target, tables):
    tracker = strandline.Tracker(state, pipeline="wos", source=f"delta:{lake}", key="id")
    with tracker.run(tables, spark=spark) as run:  # what was left unfinished, as it was planned; the rest planned now
        for table in run:
            changes = table.read()  # the last change of each key; deletes are marked
            place, txn = f"{target}/{table.name}", run.txn(table, write="copy")
            if table.whole:
                changes.write.format("delta").mode("overwrite").options(**txn.options).save(place)
            else:
                changes.createOrReplaceTempView("changes")
                gone = f"s.{table.changes.operation} = 'delete'"
                with txn.on(spark):
                    spark.sql(f"""
                        MERGE INTO delta.`{place}` t USING changes s ON t.id = s.id
                        WHEN MATCHED AND {gone} THEN DELETE
                        WHEN MATCHED THEN UPDATE SET t.note = s.note, t.price = s.price
                        WHEN NOT MATCHED AND NOT {gone} THEN INSERT (id, note, price) VALUES (s.id, s.note, s.price)
                    """)
            table.done()  # killed before this: Delta skips the write when the plan is carried out again
    tracker.close()
