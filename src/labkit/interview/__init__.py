"""Interview practice: a bank of questions, a history of answers, drills and mock interviews.

bank.py reads data/interview/ (spec.py an entry, formula.py its formulas, misconceptions.py what
slips stand for). history.py keeps answers, review.py says when they are due, choose.py which come
first, session.py runs a drill, mock.py plans an interview; begin.py makes either from what was
chosen, confidence.py asks how sure an answer is. terminal.py, panel.py and notebook.py show it;
summary.py, page.py and pictures.py make the report; command.py is `inferlab drill`.
"""
